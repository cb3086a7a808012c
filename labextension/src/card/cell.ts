import { element } from './dom';
import type { CellSize } from './layout';
import type { IRank, RankState } from '../protocol';
import { rankText, stateWord } from '../words';
import type { Translate } from '../words';

/** Glyphs for readers who can't see the colours. Small squares have shapes instead, in the style sheet. */
const GLYPHS: Record<RankState, string> = {
  starting: '\u2026',
  idle: '\u00b7',
  busy: '\u25b8',
  debugging: '\u2016',
  unresponsive: '?',
  stopping: '\u2026',
  stopped: '\u25a0',
  lost: '\u00d7'
};

/** One rank's element. It caches its state, so that showing the same state again costs nothing. */
export class RankCell {
  readonly node = element('span');
  private readonly _state: Text | null = null;
  private readonly _doing: Text | null = null;
  private _shown: IRank | undefined;
  private _className = '';
  private _label = '';
  private _isSelected = false;

  constructor(rank: number, size: CellSize) {
    this.node.dataset.rank = String(rank);
    this.node.setAttribute('role', 'gridcell');
    this.node.setAttribute('aria-label', String(rank));
    this.node.tabIndex = -1;
    this._class('mnb-cell');
    if (size !== 'small') {
      this._part('mnb-cell-number', String(rank));
      this._state = this._part(size === 'large' ? 'mnb-cell-state' : 'mnb-cell-glyph', '');
      this._doing = size === 'large' ? this._part('mnb-cell-doing', '') : null;
    }
  }

  /** Show a rank as it is now. */
  show(rank: IRank | undefined, t: Translate): void {
    if (!rank || rank === this._shown) {
      return;
    }
    if (rank.state !== this._shown?.state) {
      this._class(`mnb-cell mnb-${rank.state}`);
      setData(this._state, this._doing ? stateWord(rank.state, t) : (GLYPHS[rank.state] ?? ''));
    }
    this._shown = rank;
    setData(this._doing, rank.reason || rank.doing);
    const label = rankText(rank, t);
    if (label !== this._label) {
      this._label = label;
      this.node.setAttribute('aria-label', label);
    }
  }

  select(isSelected: boolean): void {
    this._isSelected = isSelected;
    this.node.classList.toggle('mnb-selected', isSelected);
    this.node.setAttribute('aria-selected', String(isSelected));
  }

  setReachable(isReachable: boolean): void {
    this.node.tabIndex = isReachable ? 0 : -1;
  }

  setTitle(title: string): void {
    if (this.node.title !== title) {
      this.node.title = title;
    }
  }

  private _class(className: string): void {
    if (className !== this._className) {
      this._className = className;
      this.node.className = this._isSelected ? `${className} mnb-selected` : className;
    }
  }

  private _part(className: string, text: string): Text {
    const part = element('span', className);
    const node = document.createTextNode(text);
    part.append(node);
    this.node.append(part);
    return node;
  }
}

function setData(node: Text | null, text: string): void {
  if (node && node.data !== text) {
    node.data = text;
  }
}
