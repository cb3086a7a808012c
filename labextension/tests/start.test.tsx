import * as React from 'react';
import { act } from 'react';
import { expect, test, vi } from 'vitest';
import { ApiError } from '../src/errors';
import type { ICluster, IMeshSummary } from '../src/protocol';
import { parseSizes } from '../src/panel/sizes';
import { EMPTY_DRAFT, findProblems, requestOf } from '../src/panel/start';
import { StartForm } from '../src/panel/startform';
import { summary } from './meshes';
import { show, submit, type } from './react';

const noClusters = () => Promise.resolve([]);
const draft = (changes: object) => ({ ...EMPTY_DRAFT, ...changes });

test('the empty form is good as it is', () => {
  expect(findProblems(EMPTY_DRAFT)).toEqual({});
  expect(requestOf(EMPTY_DRAFT)).toEqual({
    name: 'mesh',
    dims: [],
    num_hosts: 0,
    job: 'local',
    idle_timeout: '8h',
    process_group: ''
  });
});

test('what was typed becomes a request', () => {
  const typed = draft({
    name: ' demo ',
    dimension: 'gpus',
    size: '4',
    job: 'process',
    hosts: '2',
    idleTimeout: '30m',
    processGroup: 'gloo'
  });
  expect(findProblems(typed)).toEqual({});
  expect(requestOf(typed)).toEqual({
    name: 'demo',
    dims: [['gpus', 4]],
    num_hosts: 2,
    job: 'process',
    idle_timeout: '30m',
    process_group: 'gloo'
  });
});

test.each([
  [{ name: '' }, 'name'],
  [{ name: '2nd' }, 'name'],
  [{ name: 'über' }, 'name'],
  [{ name: 'taken' }, 'name'],
  [{ size: '4' }, 'dimension'],
  [{ dimension: 'hosts', size: '2' }, 'dimension'],
  [{ dimension: 'gpus' }, 'size'],
  [{ dimension: 'gpus', size: '0' }, 'size'],
  [{ dimension: 'gpus', size: '2.5' }, 'size'],
  [{ job: 'process' }, 'hosts'],
  [{ job: 'on:lab', hosts: '0..2' }, 'hosts'],
  [{ job: 'on:lab', gpus: 'all' }, 'gpus'],
  [{ job: 'on:lab', time: 'long' }, 'time'],
  [{ idleTimeout: 'soon' }, 'idleTimeout'],
  [{ idleTimeout: '0h' }, 'idleTimeout']
])('%j has a problem with %s', (changes, field) => {
  expect(Object.keys(findProblems(draft(changes), ['taken']))).toEqual([field]);
});

test('hosts of a local job are of no matter', () => {
  expect(findProblems(draft({ hosts: 'many' }))).toEqual({});
});

test('a form with problems is not sent, and says them at the fields', async () => {
  const start = vi.fn();
  const node = await show(<StartForm taken={[]} start={start} clusters={noClusters} onStarted={vi.fn()} />);
  await type(node, 'input[name=size]', '4');
  await submit(node);
  expect(start).not.toHaveBeenCalled();
  const input = node.querySelector('input[name=dimension]');
  expect(input?.getAttribute('aria-invalid')).toBe('true');
  expect(document.getElementById(input?.getAttribute('aria-describedby') ?? '')?.textContent).toContain(
    'gpus'
  );
});

test('it is busy while the mesh starts, and then says which has started', async () => {
  let finish: (mesh: IMeshSummary) => void = () => undefined;
  const start = vi.fn(() => new Promise<IMeshSummary>(resolve => (finish = resolve)));
  const onStarted = vi.fn();
  const node = await show(
    <StartForm taken={['mesh']} start={start} clusters={noClusters} onStarted={onStarted} />
  );
  expect(node.querySelector<HTMLInputElement>('input[name=name]')?.value).toBe('mesh2');
  await submit(node);
  await submit(node);
  expect(start).toHaveBeenCalledTimes(1);
  expect(node.querySelector('form')?.getAttribute('aria-busy')).toBe('true');
  expect(node.querySelector('fieldset')?.disabled).toBe(true);
  await act(async () => finish(summary({ idle: 4 }, { name: 'mesh2' })));
  expect(onStarted).toHaveBeenCalledWith('mesh2');
  expect(node.querySelector('fieldset')?.disabled).toBe(false);
});

const cluster = (changes: Partial<ICluster> = {}): ICluster => ({
  name: 'lab',
  engine: 'slurm',
  is_profile: true,
  why_not: '',
  hosts: '2..8',
  gpus: 8,
  time_s: 7200,
  partition: 'a100',
  usd_per_gpu_hour: null,
  ...changes
});

test('a profile is asked for hosts, and what is left empty is left to it', async () => {
  const start = vi.fn(() => Promise.resolve({ name: 'mesh' }));
  const clusters = () =>
    Promise.resolve([cluster(), cluster({ name: 'ray', is_profile: false, why_not: 'no ray here' })]);
  const node = await show(<StartForm taken={[]} start={start} clusters={clusters} onStarted={vi.fn()} />);
  const options = [...node.querySelectorAll('select[name=job] option')].map(each => each.textContent);
  expect(options.slice(2)).toEqual(['lab: slurm, partition a100']);
  expect(node.querySelector('input[name=time]')).toBeNull();
  await type(node, 'select[name=job]', 'on:lab');
  const hints = ['hosts', 'gpus', 'time'].map(
    name => node.querySelector<HTMLInputElement>(`input[name=${name}]`)?.placeholder
  );
  expect(hints).toEqual(['2..8', '8', '2 h']);
  await type(node, 'input[name=hosts]', '3');
  await submit(node);
  expect(start).toHaveBeenCalledWith({
    name: 'mesh',
    dims: [],
    num_hosts: 0,
    job: 'local',
    idle_timeout: '8h',
    process_group: '',
    on: 'lab',
    hosts: '3',
    gpus: 0,
    time: ''
  });
});

test('a profile that cannot be used says why at once, and nothing is sent', async () => {
  const start = vi.fn();
  const clusters = () => Promise.resolve([cluster({ why_not: 'there is no sbatch here' })]);
  const node = await show(<StartForm taken={[]} start={start} clusters={clusters} onStarted={vi.fn()} />);
  await type(node, 'select[name=job]', 'on:lab');
  expect(node.querySelector('.mnb-problem')?.textContent).toBe(
    'lab cannot be used here: there is no sbatch here'
  );
  await submit(node);
  expect(start).not.toHaveBeenCalled();
});

test('while clusters are asked, this machine can be chosen', async () => {
  const start = vi.fn(() => Promise.resolve({ name: 'mesh' }));
  const never = () => new Promise<ICluster[]>(() => undefined);
  const node = await show(<StartForm taken={[]} start={start} clusters={never} onStarted={vi.fn()} />);
  expect(node.textContent).toContain('Asking which clusters there are');
  await submit(node);
  expect(start).toHaveBeenCalledTimes(1);
});

test('profiles that cannot be read say so, and this machine can be chosen', async () => {
  const clusters = () => Promise.reject(new ApiError(400, "clusters.toml: unknown key 'hots'"));
  const node = await show(<StartForm taken={[]} start={vi.fn()} clusters={clusters} onStarted={vi.fn()} />);
  expect(node.querySelector('.mnb-problem')?.textContent).toContain('unknown key');
  expect(node.querySelectorAll('select[name=job] option')).toHaveLength(2);
});

test('what the server says stands below the form', async () => {
  const start = () => Promise.reject(new ApiError(400, 'there are only 4 GPUs'));
  const node = await show(<StartForm taken={[]} start={start} clusters={noClusters} onStarted={vi.fn()} />);
  await submit(node);
  expect(node.querySelector('[role=alert]')?.textContent).toBe('there are only 4 GPUs');
  expect(node.querySelector('fieldset')?.disabled).toBe(false);
});

test('dimensions are read as people write them', () => {
  expect(parseSizes('hosts=2, gpus=4')).toEqual([
    ['hosts', 2],
    ['gpus', 4]
  ]);
  expect(parseSizes('gpus')).toBeNull();
  expect(parseSizes('gpus=0')).toBeNull();
  expect(parseSizes('')).toBeNull();
});
