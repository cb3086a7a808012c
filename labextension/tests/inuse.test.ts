import { expect, it } from 'vitest';
import { machines } from '../src/panel/machines';
import { MeshesModel, type Feed } from '../src/panel/model';
import type { IMeshSummary } from '../src/protocol';
import { host } from './meshes';

function summary(name: string, kernels: { [kernel: string]: number }): IMeshSummary {
  return { name, pid: 1, sizes: [], states: {}, trouble: '', kernels };
}

it('shows the mesh that the current notebook uses, before the one last used in the panel', () => {
  let tell: (meshes: IMeshSummary[]) => void = () => undefined;
  const feed = {
    watchMeshes: (listener: typeof tell) => {
      tell = listener;
      return () => undefined;
    }
  };
  const model = new MeshesModel(feed as unknown as Feed);
  model.watch();
  tell([summary('a', { one: 1, two: 5 }), summary('b', { one: 2 }), summary('c', {})]);
  expect(model.current).toBe(null);
  model.use('c');
  expect(model.current?.name).toBe('c');
  model.kernel = 'one';
  expect(model.current?.name).toBe('b');
  model.kernel = 'two';
  expect(model.current?.name).toBe('a');
  tell([summary('a', { two: 5 }), summary('b', { two: 6 }), summary('c', {})]);
  expect(model.current?.name).toBe('b');
  model.kernel = '';
  expect(model.current?.name).toBe('c');
});

it('puts hosts of one machine together', () => {
  const found = machines([
    host({ index: 0 }),
    host({ index: 1, hostname: 'host0' }),
    host({ index: 2, hostname: 'node-b', machine: 'b' }),
    host({ index: 3, state: 'lost' })
  ]);
  expect(found.map(each => each.map(({ index }) => index))).toEqual([[0, 1], [2], [3]]);
});
