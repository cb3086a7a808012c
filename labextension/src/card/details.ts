import { element, setAttribute, setText } from './dom';
import type { IRank } from '../protocol';
import type { MeshStore } from '../transport/store';
import { bytes, clock, collectiveText, duration, percent, stateWord, transfersText } from '../words';
import type { Translate } from '../words';

const TICK_MS = 1000;
const NOTHING = '\u2013';

type Row =
  'state' | 'doing' | 'line' | 'collective' | 'where' | 'load' | 'gpus' | 'queued' | 'moved' | 'last';

/**
 * The details of the selected rank. Every row is always there, so that the layout stays while values change.
 *
 * Durations count up while they are visible; a static picture shows times of day instead.
 */
export class CardDetails {
  readonly node = element('section', 'mnb-card-details');
  /** Shown instead of the node while no rank is selected. */
  readonly hint: HTMLElement;
  private readonly _title = element('div', 'mnb-card-details-title');
  private readonly _values = new Map<Row, HTMLElement>();
  private _rank: number | null = null;
  private _timer: ReturnType<typeof setInterval> | null = null;

  constructor(
    private readonly _store: MeshStore,
    private readonly _t: Translate,
    private readonly _isLive: boolean
  ) {
    this.hint = element('div', 'mnb-card-hint', _t('Select a rank to see what it does.'));
    this.node.hidden = true;
    this.node.append(this._title, this._list());
  }

  get rank(): number | null {
    return this._rank;
  }

  set rank(rank: number | null) {
    this._rank = rank;
    this.show();
  }

  /** Show the rank as it is now. */
  show(): void {
    const rank = this._rank === null ? undefined : this._store.rank(this._rank);
    this.node.hidden = rank === undefined;
    this.hint.hidden = rank !== undefined;
    if (rank) {
      this._show(rank);
    }
    this._tick(rank !== undefined && this._isCounting);
  }

  dispose(): void {
    this._tick(false);
  }

  private get _isCounting(): boolean {
    return this._isLive && this._store.ended === null;
  }

  private _list(): HTMLElement {
    const t = this._t;
    const names: [Row, string][] = [
      ['state', t('State')],
      ['doing', t('Doing')],
      ['line', t('At')],
      ['collective', t('Collective')],
      ['where', t('Where')],
      ['load', t('Load')],
      ['gpus', t('GPU')],
      ['queued', t('Waiting')],
      ['moved', t('Moved')],
      ['last', t('Last output')]
    ];
    const list = element('dl');
    for (const [row, name] of names) {
      const value = element('dd');
      value.dataset.row = row;
      this._values.set(row, value);
      list.append(element('dt', '', name), value);
    }
    return list;
  }

  private _show(rank: IRank): void {
    const t = this._t;
    const title = t('Rank %1', rank.rank);
    setText(this._title, title);
    setAttribute(this.node, 'aria-label', title);
    this._put('state', rank.reason ? `${this._stateText(rank)}: ${rank.reason}` : this._stateText(rank));
    this._put('doing', rank.doing);
    this._put('line', rank.line);
    this._put(
      'collective',
      rank.collective ? this._since(collectiveText(rank.collective), rank.collective.since) : ''
    );
    const hostname = this._store.host(rank.host)?.hostname ?? t('host %1', rank.host);
    this._put('where', t('%1, pid %2', hostname, rank.pid));
    this._put('load', t('CPU %1, memory %2', percent(rank.cpu_percent), bytes(rank.memory_bytes)));
    this._put('gpus', this._gpuText(rank));
    this._put('queued', rank.num_queued ? String(rank.num_queued) : '');
    this._put('moved', transfersText(rank.transfers, t));
    this._put('last', rank.last_line);
  }

  private _put(row: Row, text: string): void {
    const value = this._values.get(row);
    if (value) {
      setText(value, text || NOTHING);
      setAttribute(value, 'title', text);
    }
  }

  private _stateText(rank: IRank): string {
    return this._since(stateWord(rank.state, this._t), rank.since);
  }

  private _since(what: string, when: number): string {
    if (!when) {
      return what;
    }
    return this._isCounting
      ? this._t('%1 for %2', what, duration(Date.now() / 1000 - when))
      : this._t('%1 since %2', what, clock(when));
  }

  private _gpuText(rank: IRank): string {
    if (rank.gpus.length === 0) {
      return '';
    }
    const gpus = rank.gpus.join(', ');
    return rank.gpu_memory_bytes === null
      ? gpus
      : this._t('%1, memory %2', gpus, bytes(rank.gpu_memory_bytes));
  }

  /** Start or stop counting seconds. */
  private _tick(isOn: boolean): void {
    if (isOn && this._timer === null) {
      this._timer = setInterval(() => this._count(), TICK_MS);
    } else if (!isOn && this._timer !== null) {
      clearInterval(this._timer);
      this._timer = null;
    }
  }

  private _count(): void {
    if (!document.hidden && isRendered(this.node)) {
      this.show();
    }
  }
}

function isRendered(node: HTMLElement): boolean {
  return typeof node.checkVisibility === 'function' ? node.checkVisibility() : node.isConnected;
}
