import { RankCell } from './cell';
import { element } from './dom';
import { coordinates, layOut } from './layout';
import type { IBlock, ILayout, IRow } from './layout';
import type { MeshStore } from '../transport/store';
import { bytes, percent, rankText, untranslated } from '../words';
import type { Translate } from '../words';

export interface IGridOptions {
  translate?: Translate;
  /** Called when the user selects a rank; null: none. */
  onSelect?: (rank: number | null) => void;
  /** Whether small meshes have medium cells, too, for a sidebar. */
  compact?: boolean;
}

/**
 * The ranks of a mesh, laid out by its named dimensions: plain DOM, one element per rank.
 *
 * An update changes only cells that differ; only a new shape is rebuilt. One set of listeners on the node
 * serves all cells, and the title of a cell is made when the pointer is over it.
 */
export class RankGrid {
  readonly node = element('div', 'mnb-grid');
  private readonly _t: Translate;
  private readonly _onSelect: (rank: number | null) => void;
  private readonly _isCompact: boolean;
  private readonly _stop: () => void;
  private readonly _cells = new Map<number, RankCell>();
  private _lines: number[][] = [];
  private _shape = '';
  private _selected: number | null = null;
  private _reachable: number | null = null;
  private _pointedAt: number | null = null;

  constructor(
    private readonly _store: MeshStore,
    options: IGridOptions = {}
  ) {
    this._t = options.translate ?? untranslated;
    this._onSelect = options.onSelect ?? (() => undefined);
    this._isCompact = options.compact ?? false;
    this.node.setAttribute('role', 'grid');
    // JupyterLab's shortcuts for arrows and Enter act on the notebook's cells, before any listener here runs.
    this.node.dataset.lmSuppressShortcuts = 'true';
    this.node.addEventListener('click', event => this._onClick(event));
    this.node.addEventListener('keydown', event => this._onKey(event));
    this.node.addEventListener('pointerover', event => this._point(this._rankAt(event)));
    this.node.addEventListener('focusin', event => this._reach(this._rankAt(event)));
    this._refresh(null);
    this._stop = this._store.on(changed => this._refresh(changed));
  }

  /** The selected rank. Setting it doesn't call `onSelect`. */
  get selected(): number | null {
    return this._selected;
  }

  set selected(rank: number | null) {
    this._cellOf(this._selected)?.select(false);
    this._selected = rank;
    this._cellOf(rank)?.select(true);
    this._reach(rank);
  }

  dispose(): void {
    this._stop();
  }

  private _cellOf(rank: number | null): RankCell | undefined {
    return rank === null ? undefined : this._cells.get(rank);
  }

  private _refresh(changed: ReadonlySet<number> | null): void {
    const status = this._store.status;
    this.node.classList.toggle('mnb-ended', this._store.ended !== null);
    if (!status) {
      return;
    }
    if (changed === null) {
      const shape = `${JSON.stringify(status.sizes)} ${status.ranks.length}`;
      if (shape !== this._shape) {
        this._shape = shape;
        this._build(layOut(status.sizes, status.ranks.length, this._isCompact));
      }
    }
    for (const rank of changed ?? this._cells.keys()) {
      this._cells.get(rank)?.show(this._store.rank(rank), this._t);
      if (rank === this._pointedAt) {
        this._point(rank);
      }
    }
  }

  private _build(layout: ILayout): void {
    const hadFocus = this.node.contains(document.activeElement);
    this._cells.clear();
    this._lines = layout.blocks.flatMap(block => block.groups.flatMap(rows => rows.map(row => row.ranks)));
    this.node.className = `mnb-grid mnb-grid-${layout.size}`;
    this.node.setAttribute('aria-label', this._t('Ranks'));
    this.node.replaceChildren(
      ...this._legend(layout),
      ...layout.blocks.map(block => this._block(block, layout))
    );
    this._reachable = null;
    this.selected = this._cellOf(this._selected) ? this._selected : null;
    this._reach(this._selected ?? this._lines[0]?.[0] ?? null);
    if (hadFocus) {
      this._cellOf(this._reachable)?.node.focus();
    }
  }

  /** Label the axes with their dimensions; a single dimension of numbered cells needs no label. */
  private _legend({ size, down, right }: ILayout): HTMLElement[] {
    if (!down && size !== 'small') {
      return [];
    }
    const legend = element('div', 'mnb-legend', down ? `${down} \u2193  ${right} \u2192` : `${right} \u2192`);
    legend.setAttribute('aria-hidden', 'true');
    return [legend];
  }

  private _block(block: IBlock, layout: ILayout): HTMLElement {
    const node = element('div', 'mnb-block');
    node.setAttribute('role', 'rowgroup');
    if (block.label) {
      node.setAttribute('aria-label', block.label);
      const label = element('div', 'mnb-block-label', block.label);
      label.setAttribute('aria-hidden', 'true');
      node.append(label);
    }
    const isLabelled = block.groups.some(rows => rows.some(row => row.label));
    const groups = element('div', 'mnb-groups');
    groups.setAttribute('role', 'presentation');
    for (const rows of block.groups) {
      const group = element('div');
      group.setAttribute('role', 'presentation');
      group.append(...rows.map(row => this._line(row, isLabelled, layout)));
      groups.append(group);
    }
    node.append(groups);
    return node;
  }

  private _line(row: IRow, isLabelled: boolean, { size }: ILayout): HTMLElement {
    const node = element('div', 'mnb-line');
    node.setAttribute('role', 'row');
    node.setAttribute('aria-label', row.name);
    if (isLabelled) {
      const label = element('span', 'mnb-line-label', row.label);
      label.setAttribute('aria-hidden', 'true');
      node.append(label);
    }
    for (const rank of row.ranks) {
      const cell = new RankCell(rank, size);
      this._cells.set(rank, cell);
      node.append(cell.node);
    }
    return node;
  }

  private _rankAt(event: Event): number | null {
    const cell = event.target instanceof Element ? event.target.closest<HTMLElement>('.mnb-cell') : null;
    return cell ? Number(cell.dataset.rank) : null;
  }

  private _onClick(event: Event): void {
    const rank = this._rankAt(event);
    if (rank !== null) {
      this._select(rank === this._selected ? null : rank);
    }
  }

  private _select(rank: number | null): void {
    this.selected = rank;
    this._onSelect(rank);
  }

  /** Keep one cell in the tab order; arrow keys lead to the others. */
  private _reach(rank: number | null): void {
    const cell = this._cellOf(rank);
    if (cell && rank !== this._reachable) {
      this._cellOf(this._reachable)?.setReachable(false);
      cell.setReachable(true);
      this._reachable = rank;
    }
  }

  private _onKey(event: KeyboardEvent): void {
    const rank = this._rankAt(event);
    if (rank === null || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    if (event.key === 'Enter' || event.key === ' ') {
      this._select(rank);
    } else if (event.key === 'Escape' && this._selected !== null) {
      this._select(null);
    } else {
      const next = this._neighbour(rank, event.key);
      if (next === null) {
        return;
      }
      this._cellOf(next)?.node.focus();
    }
    // Jupyter binds most keys, too: the notebook mustn't get keys that the grid has handled.
    event.preventDefault();
    event.stopPropagation();
  }

  /** Return the rank that a key moves to; null if the key isn't for moving. */
  private _neighbour(rank: number, key: string): number | null {
    const row = this._lines.findIndex(line => line.includes(rank));
    const line = this._lines[row];
    const column = line.indexOf(rank);
    const inRow = (other: number): number => {
      const ranks = this._lines[Math.min(Math.max(other, 0), this._lines.length - 1)];
      return ranks[Math.min(column, ranks.length - 1)];
    };
    switch (key) {
      case 'ArrowLeft':
        return line[Math.max(column - 1, 0)];
      case 'ArrowRight':
        return line[Math.min(column + 1, line.length - 1)];
      case 'ArrowUp':
        return inRow(row - 1);
      case 'ArrowDown':
        return inRow(row + 1);
      case 'Home':
        return line[0];
      case 'End':
        return line[line.length - 1];
      default:
        return null;
    }
  }

  /** Set the title of the cell under the pointer; the others have none. */
  private _point(rank: number | null): void {
    this._pointedAt = rank;
    const cell = this._cellOf(rank);
    if (cell && rank !== null) {
      cell.setTitle(this._title(rank));
    }
  }

  private _title(rank: number): string {
    const known = this._store.rank(rank);
    const place = coordinates(this._store.status?.sizes ?? [], rank);
    if (!known) {
      return place;
    }
    const where = [
      this._store.host(known.host)?.hostname ?? '',
      this._t('pid %1', known.pid),
      known.cpu_percent === null ? '' : this._t('CPU %1', percent(known.cpu_percent)),
      known.memory_bytes === null ? '' : this._t('memory %1', bytes(known.memory_bytes))
    ];
    const parts = [rankText(known, this._t), place, known.line, where.filter(part => part).join(', ')];
    return parts.filter(part => part).join('\n');
  }
}
