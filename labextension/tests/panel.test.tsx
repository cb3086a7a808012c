import * as React from 'react';
import { act } from 'react';
import { afterEach, expect, test, vi } from 'vitest';
import { MeshList } from '../src/panel/meshlist';
import { MeshesModel } from '../src/panel/model';
import type { IMeshStatus } from '../src/protocol';
import { allocation, FakeFeed, host, rank, status, summary } from './meshes';
import { click, show, submit, type } from './react';

afterEach(() => {
  vi.useRealTimers();
});

async function panel(feed = new FakeFeed()) {
  const model = new MeshesModel(feed);
  const run = vi.fn(() => Promise.resolve());
  const start = vi.fn(() => Promise.resolve(summary({ idle: 1 })));
  const unwatch = model.watch();
  model.isActive = true;
  const clusters = () => Promise.resolve([]);
  const node = await show(
    <MeshList model={model} version="0.1.0" run={run} start={start} clusters={clusters} />
  );
  const say = (...meshes: ReturnType<typeof summary>[]) => act(async () => feed.say(...meshes));
  const tell = (snapshot: IMeshStatus) =>
    act(async () => {
      feed.stores.get(snapshot.name)?.apply({ type: 'status', status: snapshot });
    });
  return { feed, model, run, start, node, say, tell, unwatch };
}

const button = (node: HTMLElement, text: string) =>
  [...node.querySelectorAll('button')].find(b => b.textContent === text);

test('a missing extension: the command to type', async () => {
  const { node, feed } = await panel();
  await act(async () => feed.become('missing'));
  expect(node.textContent).toContain('not enabled on this Jupyter server');
  expect(node.querySelector('pre')?.textContent).toBe('jupyter server extension enable monarch_nb');
});

test('a mismatch: both versions, and what to do', async () => {
  const { node, feed } = await panel();
  feed.serverVersion = '0.9.1';
  await act(async () => feed.become('mismatch'));
  expect(node.textContent).toContain('monarch_nb 0.1.0');
  expect(node.textContent).toContain('0.9.1');
  expect(node.textContent).toContain('Reload the page');
});

test('with no mesh the form is open, and with one it is not', async () => {
  const { node, say } = await panel();
  expect(node.querySelector('form')).toBeNull();
  await say();
  expect(node.textContent).toContain('No mesh is running');
  expect(node.querySelector('form')).not.toBeNull();
  await say(summary({ idle: 8 }));
  expect(node.querySelector('form')).toBeNull();
  await click(node, 'Start a mesh');
  expect(node.querySelector('form')).not.toBeNull();
});

test('requests for hosts say how they are, and can be cancelled', async () => {
  vi.useFakeTimers({ now: 1180_000, toFake: ['Date', 'setInterval', 'clearInterval'] });
  const { node, say, feed, run } = await panel();
  await say();
  await act(async () => feed.list(allocation()));
  const request = node.querySelector<HTMLElement>('.mnb-request');
  expect(request?.querySelector('.mnb-request-head')?.textContent).toBe('laterslurm job 7 on lab');
  expect(request?.querySelector('.mnb-request-state')?.textContent).toBe('queued 3 min (Resources), 3 hosts');
  expect(node.textContent).not.toContain('No mesh is running');
  expect(button(node, 'Wait for it')).toBeUndefined();
  await click(node, 'Cancel');
  expect(run).toHaveBeenLastCalledWith('monarch-nb:cancel', { mesh: 'later' });
  await act(async () => feed.list(allocation({ is_waited_for: false, trouble: 'it is held' })));
  expect(node.querySelector('.mnb-request .mnb-problem')?.textContent).toBe('it is held');
  await click(node, 'Wait for it');
  expect(run).toHaveBeenLastCalledWith('monarch-nb:wait', { mesh: 'later' });
  const there = { state: 'granted', reason: '', num_hosts: 3, is_up: true, ends_at: 1180 + 7200 } as const;
  await act(async () => feed.list(allocation(there)));
  expect(node.querySelector('.mnb-request-state')?.textContent).toBe('granted, 3 hosts, 2 h left');
  await act(async () => feed.list(allocation({ state: 'failed', reason: 'no python there' })));
  expect(node.querySelector('.mnb-request .mnb-problem')?.textContent).toBe('no python there');
  await click(node, 'Dismiss');
  expect(run).toHaveBeenLastCalledWith('monarch-nb:cancel', { mesh: 'later' });
});

test('engines are asked only while the panel can be seen', async () => {
  const { model, feed } = await panel();
  expect(feed.areAllocationsWatched).toBe(true);
  await act(async () => {
    model.isActive = false;
  });
  expect(feed.areAllocationsWatched).toBe(false);
});

test('a mesh that was started here is opened, and is the one in the status bar', async () => {
  const { node, model, say } = await panel();
  await act(async () => {
    model.openByDefault = false;
  });
  await say();
  await submit(node);
  await say(summary({ idle: 1 }), summary({ idle: 1 }, { name: 'other' }));
  expect(model.isOpen('demo')).toBe(true);
  expect(model.isOpen('other')).toBe(false);
  expect(model.current?.name).toBe('demo');
});

test('an open mesh shows hosts and ranks, and why ranks are lost', async () => {
  const { node, say, tell } = await panel();
  await say(summary({ idle: 6, busy: 1, lost: 1 }));
  const ranks = Array.from({ length: 8 }, (_, n) => rank(n));
  ranks[2] = rank(2, { state: 'busy', doing: 'cell #17' });
  ranks[3] = rank(3, { state: 'lost', reason: 'killed by SIGKILL' });
  await tell(status(ranks));
  expect(node.textContent).toContain('6 idle, 1 busy, 1 lost');
  expect(node.querySelector('.mnb-dot')?.getAttribute('aria-label')).toBe('trouble');
  expect(node.querySelector('.mnb-failed')?.textContent).toBe('rank 3 lost: killed by SIGKILL');
  expect(node.querySelectorAll('[role=gridcell]')).toHaveLength(8);
  expect(node.querySelector('.mnb-host')?.textContent).toContain('node-a');
  expect(button(node, 'Heal')?.disabled).toBe(false);
});

test('a host that differs from the notebook has a row, with what to type', async () => {
  const { node, say, tell } = await panel();
  await say(summary({ idle: 1 }));
  await tell(status([rank(0)]));
  expect(node.querySelector('.mnb-host-differs')).toBeNull();
  await tell(status([rank(0)], { hosts: [host({ differs: "einops isn't there: %mesh sync --env" })] }));
  expect(node.querySelector('.mnb-host-differs')?.textContent).toBe(
    "Host 0 differs: einops isn't there: %mesh sync --env"
  );
});

test('only what is lost can be healed, and only once at a time', async () => {
  const { node, say, tell } = await panel();
  await say(summary({ idle: 2 }));
  expect(button(node, 'Heal')?.disabled).toBe(true);
  await say(summary({ idle: 1, lost: 1 }));
  expect(button(node, 'Heal')?.disabled).toBe(false);
  await tell(status([rank(0), rank(1, { state: 'lost' })], { is_healing: true }));
  expect(button(node, 'Healing ...')?.disabled).toBe(true);
});

test('GPUs have their own bars, with memory and temperature', async () => {
  const { node, say, tell } = await panel();
  await say(summary({ idle: 1 }));
  const gpu = {
    index: 0,
    name: 'Big One',
    utilization_percent: 87,
    memory_used_bytes: 34e9,
    memory_total_bytes: 80e9,
    temperature_c: 61,
    processes: [{ pid: 1000, memory_bytes: 1e9, rank: 0 }]
  };
  await tell(status([rank(0)], { hosts: [host({ gpus: [gpu] })] }));
  expect(node.querySelector('.mnb-gpu')?.textContent).toContain('61 °C');
  expect(node.querySelector('.mnb-gpu')?.getAttribute('title')).toContain('Big One');
  const meters = [...node.querySelectorAll('.mnb-gpu [role=meter]')].map(m =>
    m.getAttribute('aria-valuenow')
  );
  expect(meters).toEqual(['87', '43']);
});

test('a selected rank shows its details, and its buttons act on it', async () => {
  const { node, say, tell, run } = await panel();
  await say(summary({ idle: 1, busy: 1 }));
  const collective = { name: 'all_reduce', sequence: 12, since: 0, shape: [2, 3], dtype: 'float32' };
  const busy = rank(1, {
    state: 'busy',
    doing: 'cell #17',
    line: 'In [3], line 4: loss.backward()',
    collective
  });
  await tell(status([rank(0), busy]));
  expect(node.querySelector('.mnb-rank')).toBeNull();
  await act(async () => node.querySelectorAll<HTMLElement>('[role=gridcell]')[1].click());
  const details = node.querySelector<HTMLElement>('.mnb-rank');
  expect(details?.textContent).toContain('In [3], line 4: loss.backward()');
  expect(details?.textContent).toContain('all_reduce #12 float32[2, 3]');
  await click(details as HTMLElement, 'Interrupt rank');
  expect(run).toHaveBeenCalledWith('monarch-nb:interrupt', { mesh: 'demo', ranks: '1' });
  await click(details as HTMLElement, 'Stack');
  expect(run).toHaveBeenCalledWith('monarch-nb:stacks', { mesh: 'demo', ranks: '1' });
});

test('the toolbar runs commands on its mesh', async () => {
  const { node, say, run } = await panel();
  await say(summary({ idle: 2 }));
  for (const [label, command] of [
    ['Interrupt', 'interrupt'],
    ['Attach', 'attach'],
    ['Logs', 'logs'],
    ['Stop', 'stop']
  ]) {
    await click(node, label);
    expect(run).toHaveBeenLastCalledWith(`monarch-nb:${command}`, { mesh: 'demo' });
  }
});

test('resizing asks for one number per dimension', async () => {
  const { node, say, run } = await panel();
  await say(
    summary(
      { idle: 4 },
      {
        sizes: [
          ['hosts', 2],
          ['gpus', 2]
        ]
      }
    )
  );
  await click(node, 'Resize');
  const inputs = node.querySelectorAll<HTMLInputElement>('.mnb-resize input');
  expect([...inputs].map(input => input.value)).toEqual(['2', '2']);
  await type(node, '.mnb-resize input', '0');
  await submit(node);
  expect(run).not.toHaveBeenCalled();
  await type(node, '.mnb-resize input', '4');
  await submit(node);
  const sizes = [
    ['hosts', 4],
    ['gpus', 2]
  ];
  expect(run).toHaveBeenCalledWith('monarch-nb:resize', { mesh: 'demo', sizes });
  expect(node.querySelector('.mnb-resize')).toBeNull();
});

test('a rank in the debugger is a badge that opens it', async () => {
  const { node, say, run } = await panel();
  await say(summary({ idle: 2 }));
  expect(node.querySelector('.mnb-badge')).toBeNull();
  await say(summary({ idle: 1, debugging: 1 }));
  await click(node, 'debugging');
  expect(run).toHaveBeenCalledWith('monarch-nb:debug', { mesh: 'demo' });
});

test('a mesh in trouble says why, is not watched, and can only be stopped', async () => {
  const { node, feed, say } = await panel();
  await say(summary({}, { trouble: 'it is of version 0.0.9; stop it, or use that version' }));
  expect(node.querySelector('.mnb-mesh .mnb-problem')?.textContent).toContain('version 0.0.9');
  expect(feed.stores.size).toBe(0);
  expect(button(node, 'Stop')).toBeDefined();
  expect(button(node, 'Heal')).toBeUndefined();
});

test('only what can be seen is watched', async () => {
  const { node, feed, model, say, unwatch } = await panel();
  await say(summary({ idle: 2 }));
  expect(feed.stores.size).toBe(1);
  await act(async () => {
    model.isActive = false;
  });
  expect(feed.stores.size).toBe(0);
  await act(async () => {
    model.isActive = true;
  });
  expect(feed.stores.size).toBe(1);
  await act(async () => node.querySelector<HTMLElement>('.mnb-mesh-head .mnb-mesh-toggle')?.click());
  expect(feed.stores.size).toBe(0);
  unwatch();
  expect(feed.isWatched).toBe(false);
});

test('meshes are watched until nobody does', () => {
  const feed = new FakeFeed();
  const model = new MeshesModel(feed);
  const [first, second] = [model.watch(), model.watch()];
  first();
  first();
  expect(feed.isWatched).toBe(true);
  second();
  expect(feed.isWatched).toBe(false);
});

test('a lost connection is said after a moment, and what was known stays', async () => {
  vi.useFakeTimers();
  const { node, feed, say } = await panel();
  await say(summary({ idle: 2 }));
  await act(async () => feed.become('connecting'));
  expect(node.textContent).not.toContain('No connection');
  await act(async () => vi.advanceTimersByTime(2000));
  expect(node.textContent).toContain('No connection to the Jupyter server');
  expect(node.textContent).toContain('2 idle');
  await act(async () => feed.become('open'));
  expect(node.textContent).not.toContain('No connection');
});
