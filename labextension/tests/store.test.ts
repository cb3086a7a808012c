import { describe, expect, it, vi } from 'vitest';
import { MeshStore } from '../src/transport/store';
import { host, rank, status } from './fakes';

function filled(): MeshStore {
  const store = new MeshStore();
  store.apply({ type: 'status', status: status() });
  return store;
}

describe('MeshStore', () => {
  it('takes changes in and says what they touched', () => {
    const store = filled();
    const heard = vi.fn();
    store.on(heard);
    const lost = rank(2, { state: 'lost' });
    const changed = store.apply({
      type: 'delta',
      mesh: { num_cells: 3 },
      hosts: [host(0, { pid: 77 })],
      ranks: [lost]
    });
    expect([...(changed ?? [])]).toEqual([2]);
    expect(heard).toHaveBeenCalledWith(changed);
    expect(store.rank(2)).toBe(lost);
    expect(store.status).toMatchObject({ num_cells: 3, hosts: [{ pid: 77 }] });
  });

  it('keeps ranks it was not told of as they were', () => {
    const store = filled();
    const before = store.rank(1);
    store.apply({ type: 'delta', mesh: {}, hosts: [], ranks: [rank(2)] });
    expect(store.rank(1)).toBe(before);
  });

  it('takes in another shape', () => {
    const store = filled();
    const fewer = store.apply({ type: 'delta', mesh: { sizes: [['gpus', 2]] }, hosts: [], ranks: [] });
    expect(fewer).toBeNull();
    expect(store.status?.ranks.map(r => r.rank)).toEqual([0, 1]);
    store.apply({ type: 'delta', mesh: { sizes: [['gpus', 3]] }, hosts: [host(1)], ranks: [rank(2)] });
    expect(store.status?.ranks.map(r => r.rank)).toEqual([0, 1, 2]);
    expect(store.host(1)?.hostname).toBe('node-1');
  });

  it('does not change what it was given', () => {
    const given = status();
    const [one, other] = [new MeshStore(), new MeshStore()];
    one.apply({ type: 'status', status: given });
    other.apply({ type: 'status', status: given });
    one.apply({ type: 'delta', mesh: {}, hosts: [], ranks: [rank(0, { state: 'busy' })] });
    expect(other.rank(0)?.state).toBe('idle');
    expect(given.ranks[0].state).toBe('idle');
  });

  it('ignores changes before the first snapshot', () => {
    const store = new MeshStore();
    expect(store.apply({ type: 'delta', mesh: {}, hosts: [], ranks: [rank(0)] })?.size).toBe(0);
    expect(store.status).toBeNull();
  });

  it('ends once, and keeps its last state', () => {
    const store = filled();
    const heard = vi.fn();
    store.on(heard);
    store.end('stopped');
    store.end('again');
    expect(store.ended).toBe('stopped');
    expect(store.status).not.toBeNull();
    expect(heard).toHaveBeenCalledTimes(1);
  });

  it('no longer tells who has left', () => {
    const store = filled();
    const heard = vi.fn();
    store.on(heard)();
    store.end('');
    expect(heard).not.toHaveBeenCalled();
  });
});
