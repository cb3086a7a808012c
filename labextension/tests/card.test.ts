import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { MeshCard } from '../src/card/card';
import type { IActions } from '../src/card/card';
import { MeshStore } from '../src/transport/store';
import { host, rank, status } from './fakes';

let store: MeshStore;
let card: MeshCard;
let actions: { [name in keyof IActions]: ReturnType<typeof vi.fn<() => Promise<string>>> };

function button(label: string): HTMLButtonElement {
  const found = [...card.node.querySelectorAll('button')].find(b => b.textContent === label);
  if (!found) {
    throw new Error(`no button ${label}`);
  }
  return found;
}

function text(selector: string): string {
  return card.node.querySelector(selector)?.textContent ?? '';
}

function change(...ranks: ReturnType<typeof rank>[]): void {
  store.apply({ type: 'delta', mesh: {}, hosts: [], ranks });
}

beforeEach(() => {
  vi.useFakeTimers({ now: 100_000 });
  const answer = () => vi.fn(() => Promise.resolve(''));
  actions = { interrupt: answer(), heal: answer(), stop: answer(), stacks: answer(), lastLines: answer() };
  store = new MeshStore();
  store.apply({ type: 'status', status: status() });
  card = new MeshCard(store, actions);
  document.body.append(card.node);
});

afterEach(() => {
  card.dispose();
  document.body.replaceChildren();
  vi.useRealTimers();
});

describe('MeshCard', () => {
  it('shows the mesh, its hosts and how it does', () => {
    expect(text('.mnb-card-name')).toBe('dev');
    expect(text('.mnb-card-facts')).toContain('4 ranks: 4 idle');
    expect(text('.mnb-card-hosts tbody')).toBe('node-012%3.73 GiB');
    expect(text('.mnb-card-health')).toBe('ok');
    change(rank(1, { state: 'lost', reason: 'killed' }));
    expect(text('.mnb-card-health')).toBe('trouble');
  });

  it('says in what hosts differ from the notebook, equal differences once', () => {
    expect(text('.mnb-card-host-notes')).toBe('');
    const differs = "einops isn't there: %mesh sync --env";
    store.apply({
      type: 'delta',
      mesh: {},
      hosts: [host(0), host(1, { differs }), host(2, { differs })],
      ranks: []
    });
    expect(text('.mnb-card-host-notes')).toBe(`Hosts 1-2 differ: ${differs}`);
    store.apply({ type: 'delta', mesh: {}, hosts: [host(1), host(2, { differs })], ranks: [] });
    expect(text('.mnb-card-host-notes')).toBe(`Host 2 differs: ${differs}`);
  });

  it('says once that a rank was lost', () => {
    expect(text('[role=status].mnb-unseen')).toBe('');
    change(rank(1, { state: 'lost', reason: 'killed by SIGKILL' }));
    expect(text('.mnb-unseen')).toBe('rank 1, lost: killed by SIGKILL');
    change(rank(2, { state: 'lost', reason: 'gone' }), rank(3, { state: 'lost', reason: 'gone' }));
    expect(text('.mnb-unseen')).toBe('ranks 2-3, lost: gone');
  });

  it('has details of the selected rank, and counts the seconds', () => {
    change(rank(2, { state: 'busy', doing: 'cell #17', since: 95, line: 'In [3], line 4: f()' }));
    card.node.querySelector<HTMLElement>('[data-rank="2"]')?.click();
    expect(text('[data-row=state]')).toBe('busy for 5 s');
    expect(text('[data-row=line]')).toBe('In [3], line 4: f()');
    vi.advanceTimersByTime(2000);
    expect(text('[data-row=state]')).toBe('busy for 7 s');
    store.end('stopped');
    expect(vi.getTimerCount()).toBe(0);
  });

  it('heals only what is lost', () => {
    expect(button('Heal').disabled).toBe(true);
    change(rank(1, { state: 'lost' }));
    expect(button('Heal').disabled).toBe(false);
    store.apply({ type: 'delta', mesh: {}, hosts: [host(0, { state: 'lost' })], ranks: [rank(1)] });
    expect(button('Heal').disabled).toBe(false);
  });

  it('stops at the second click only', () => {
    button('Stop').click();
    vi.advanceTimersByTime(4000);
    button('Stop').click();
    expect(actions.stop).not.toHaveBeenCalled();
    button('Really?').click();
    expect(actions.stop).toHaveBeenCalledOnce();
  });

  it('shows answers and refusals', async () => {
    card.node.querySelector<HTMLElement>('[data-rank="2"]')?.click();
    actions.stacks.mockResolvedValue('File "a.py", line 1');
    button('Stack').click();
    await vi.advanceTimersByTimeAsync(0);
    expect(actions.stacks).toHaveBeenCalledWith('2');
    expect(text('.mnb-card-answer pre')).toBe('File "a.py", line 1');
    actions.interrupt.mockRejectedValue(new Error('nothing runs'));
    button('Interrupt').click();
    await vi.advanceTimersByTimeAsync(0);
    expect(text('.mnb-card-answer pre')).toBe('nothing runs');
    expect(card.node.querySelector('.mnb-card-answer')?.classList).toContain('mnb-error');
  });

  it('keeps the last state when it is over', () => {
    store.end('The mesh was stopped');
    expect(text('.mnb-card-ended')).toBe('The mesh was stopped');
    expect(text('.mnb-card-health')).toBe('ended');
    expect(card.node.querySelectorAll('.mnb-cell')).toHaveLength(4);
    expect(button('Stop').disabled).toBe(true);
  });

  it('is a picture without actions', () => {
    const picture = new MeshCard(store, null);
    expect(picture.node.querySelectorAll('button')).toHaveLength(0);
    picture.dispose();
  });
});
