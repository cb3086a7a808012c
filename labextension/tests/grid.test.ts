import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { RankGrid } from '../src/card/grid';
import { MeshStore } from '../src/transport/store';
import { rank, status } from './fakes';

let store: MeshStore;
let grid: RankGrid;
const onSelect = vi.fn();

function cell(number: number): HTMLElement {
  const found = grid.node.querySelector<HTMLElement>(`[data-rank="${number}"]`);
  if (!found) {
    throw new Error(`no cell ${number}`);
  }
  return found;
}

function press(number: number, key: string): void {
  cell(number).dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
}

beforeEach(() => {
  onSelect.mockReset();
  store = new MeshStore();
  store.apply({ type: 'status', status: status([['hosts', 2], ['gpus', 4]]) }); // prettier-ignore
  grid = new RankGrid(store, { onSelect });
  document.body.append(grid.node);
});

afterEach(() => {
  grid.dispose();
  document.body.replaceChildren();
});

describe('RankGrid', () => {
  it('is a grid to screen readers', () => {
    expect(grid.node.getAttribute('role')).toBe('grid');
    expect([...grid.node.querySelectorAll('[role=row]')].map(row => row.getAttribute('aria-label'))).toEqual([
      'hosts=0',
      'hosts=1'
    ]);
    expect(cell(3).getAttribute('aria-label')).toBe('rank 3, idle');
  });

  it('touches only what has changed', async () => {
    const touched = new Set<string | undefined>();
    const observer = new MutationObserver(() => undefined);
    observer.observe(grid.node, { attributes: true, childList: true, characterData: true, subtree: true });
    store.apply({
      type: 'delta',
      mesh: {},
      hosts: [],
      ranks: [rank(2, { state: 'lost', reason: 'killed by SIGKILL' }), rank(3, { cpu_percent: 7 })]
    });
    for (const { target } of observer.takeRecords()) {
      touched.add(
        (target instanceof HTMLElement ? target : target.parentElement)?.closest<HTMLElement>('.mnb-cell')
          ?.dataset.rank
      );
    }
    observer.disconnect();
    expect([...touched]).toEqual(['2']);
    expect(cell(2).className).toBe('mnb-cell mnb-lost');
    expect(cell(2).getAttribute('aria-label')).toBe('rank 2, lost: killed by SIGKILL');
    expect(cell(2).textContent).toContain('lost');
  });

  it('keeps its elements when a new snapshot comes, and builds anew for another shape', () => {
    const before = cell(1);
    store.apply({ type: 'status', status: status([['hosts', 2], ['gpus', 4]]) }); // prettier-ignore
    expect(cell(1)).toBe(before);
    store.apply({ type: 'status', status: status([['gpus', 70]]) });
    expect(cell(69)).toBeTruthy();
    expect(grid.node.classList).toContain('mnb-grid-small');
  });

  it('titles the cell that is pointed at, and keeps the title up to date', () => {
    expect(cell(5).title).toBe('');
    cell(5).dispatchEvent(new Event('pointerover', { bubbles: true }));
    expect(cell(5).title).toBe('rank 5, idle\nhosts=1, gpus=1\nnode-0, pid 1005');
    store.apply({
      type: 'delta',
      mesh: {},
      hosts: [],
      ranks: [rank(5, { state: 'busy', doing: 'cell #17' })]
    });
    expect(cell(5).title).toContain('busy: cell #17');
  });

  it('selects by click, Enter and Escape', () => {
    cell(1).click();
    expect(grid.selected).toBe(1);
    expect(cell(1).getAttribute('aria-selected')).toBe('true');
    press(2, 'Enter');
    press(2, 'Escape');
    cell(4).click();
    cell(4).click();
    expect(onSelect.mock.calls.flat()).toEqual([1, 2, null, 4, null]);
    grid.selected = 6;
    expect(cell(6).classList).toContain('mnb-selected');
    expect(onSelect).toHaveBeenCalledTimes(5);
  });

  it('stays selected through changes of state', () => {
    grid.selected = 1;
    store.apply({ type: 'delta', mesh: {}, hosts: [], ranks: [rank(1, { state: 'busy' })] });
    expect(cell(1).className).toBe('mnb-cell mnb-busy mnb-selected');
  });

  it.each([
    [0, 'ArrowRight', 1],
    [3, 'ArrowRight', 3],
    [1, 'ArrowDown', 5],
    [5, 'ArrowUp', 1],
    [1, 'ArrowUp', 1],
    [6, 'Home', 4],
    [6, 'End', 7]
  ])('leads from %i by %s to %i', (from, key, to) => {
    cell(from).focus();
    press(from, key);
    expect(document.activeElement).toBe(cell(to));
    expect([...grid.node.querySelectorAll('[tabindex="0"]')]).toEqual([cell(to)]);
  });

  it('lets other keys pass', () => {
    const event = new KeyboardEvent('keydown', { key: 'a', bubbles: true, cancelable: true });
    cell(0).dispatchEvent(event);
    expect(event.defaultPrevented).toBe(false);
  });
});
