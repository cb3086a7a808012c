import * as React from 'react';
import { act } from 'react';
import { describe, expect, test, vi } from 'vitest';
import { foldPlaces, parseRanks, placeText, whoText } from '../src/debug/fold';
import { DebugModel, MAX_ENTRIES, type IDebugSource } from '../src/debug/model';
import { DebugView } from '../src/debug/view';
import type { IDebugAnswers, IStop } from '../src/protocol';
import { Stream } from '../src/transport/stream';
import { untranslated } from '../src/words';
import { FakeSocket } from './fakes';
import { click, show, submit, type } from './react';

function stop(rank: number, changes: Partial<IStop> = {}): IStop {
  return {
    id: rank + 100,
    rank,
    thread: 'main',
    what: 'cell #3',
    file: 'In [3]',
    line: 4,
    function: 'step',
    text: 'loss.backward()',
    state: 'stopped',
    reason: 'breakpoint',
    source: [
      [3, 'loss = f(x)'],
      [4, 'loss.backward()'],
      [5, 'opt.step()']
    ],
    ...changes
  };
}

/** Ranks whose variables are `values`; other lines are answered by what a test has them answer. */
class FakeSource implements IDebugSource {
  stops: IStop[] = [];
  sent: [number[] | null, string][] = [];
  values: { [rank: number]: object } = {};
  answer: (stops: IStop[], line: string) => IDebugAnswers['answers'] | Promise<IDebugAnswers['answers']> =
    () => [];
  left: number[] = [];
  refusal = '';
  isWatched = false;
  private _onStops: (stops: IStop[]) => void = () => undefined;
  end: (reason: string) => void = () => undefined;

  async send(ids: number[] | null, line: string): Promise<IDebugAnswers> {
    const asked = this.stops.filter(each => ids === null || ids.includes(each.id));
    if (line === '!!vars') {
      const answers = asked.map(({ id, rank }) => ({
        ids: [id],
        ranks: String(rank),
        text: JSON.stringify(this.values[rank] ?? {})
      }));
      return { answers, stops: this.stops };
    }
    this.sent.push([ids, line]);
    if (this.refusal) {
      throw new Error(this.refusal);
    }
    return { answers: await this.answer(asked, line), left: this.left, stops: this.stops };
  }

  watch(onStops: (stops: IStop[]) => void, onEnd: (reason: string) => void): () => void {
    this.isWatched = true;
    this._onStops = onStops;
    this.end = onEnd;
    return () => {
      this.isWatched = false;
    };
  }

  async say(...stops: IStop[]): Promise<void> {
    this.stops = stops;
    await act(async () => this._onStops(stops));
  }
}

async function session(...stops: IStop[]): Promise<{ model: DebugModel; source: FakeSource }> {
  const source = new FakeSource();
  const model = new DebugModel(source);
  model.isActive = true;
  await source.say(...stops);
  return { model, source };
}

async function view(
  ...stops: IStop[]
): Promise<{ node: HTMLElement; model: DebugModel; source: FakeSource }> {
  const found = await session(...stops);
  return { ...found, node: await show(<DebugView model={found.model} />) };
}

const entries = (model: DebugModel) => model.entries.map(({ kind, ranks, text }) => [kind, ranks, text]);
const input = (node: HTMLElement) => node.querySelector('.mnb-debug-line') as HTMLInputElement;

describe('folding', () => {
  test('ranks at one place are one place', () => {
    const places = foldPlaces([stop(0), stop(1), stop(2), stop(3, { line: 5, function: '<module>' })]);
    expect(places.map(place => [whoText(place, untranslated), placeText(place, untranslated)])).toEqual([
      ['ranks 0-2', 'In [3] line 4 in step'],
      ['rank 3', 'In [3] line 5']
    ]);
  });

  test('two actors of one rank are two places, and one rank each', () => {
    const places = foldPlaces([stop(0, { id: 1, thread: 'a' }), stop(0, { id: 2, thread: 'b' })]);
    expect(places.map(place => whoText(place, untranslated))).toEqual(['rank 0', 'rank 0']);
  });

  test('what steps is said to', () => {
    const [place] = foldPlaces([stop(0, { state: 'running' })]);
    expect(placeText(place, untranslated)).toBe('runs on from In [3] line 4');
  });

  test('rank sets are read, and nothing else', () => {
    expect([...(parseRanks('0-2, 7') ?? [])]).toEqual([0, 1, 2, 7]);
    for (const bad of ['', 'all', '3-1', '1,,2', '0-999999999', '-1']) {
      expect(parseRanks(bad)).toBeNull();
    }
  });
});

describe('the model', () => {
  test('a line goes to all, and its answers are kept with their ranks', async () => {
    const { model, source } = await session(stop(0), stop(1));
    source.answer = () => [
      { ids: [100], ranks: '0', text: '1' },
      { ids: [101], ranks: '1', text: '2' }
    ];
    await model.enter('p x');
    expect(source.sent).toEqual([[[100, 101], 'p x']]);
    expect(entries(model)).toEqual([
      ['line', '0-1', 'p x'],
      ['answer', '0', '1'],
      ['answer', '1', '2']
    ]);
  });

  test('a line goes to the focus only, until that has gone', async () => {
    const { model, source } = await session(stop(0), stop(1), stop(2, { line: 9 }));
    model.focusOnly(model.places[1]);
    expect(model.shown?.rank).toBe(2);
    await model.enter('next');
    expect(source.sent).toEqual([[[102], 'next']]);
    // It has stepped: it's the same stop at another line.
    await source.say(stop(0), stop(1), stop(2, { line: 10 }));
    expect(model.ready.map(each => each.rank)).toEqual([2]);
    await source.say(stop(0), stop(1));
    expect(model.ready.map(each => each.rank)).toEqual([0, 1]);
  });

  test('places are taken in and out of the focus, but never the last one', async () => {
    const { model } = await session(stop(0), stop(1, { line: 9 }));
    const [first, second] = model.places;
    model.toggle(first);
    expect(model.focused.map(each => each.rank)).toEqual([1]);
    model.toggle(second);
    expect(model.focused.map(each => each.rank)).toEqual([1]);
    model.toggle(first);
    expect(model.isFocused(first)).toBe('all');
  });

  test('words of ours are not sent', async () => {
    const { model, source } = await session(stop(0), stop(1), stop(5));
    await model.enter('focus 1-5');
    expect(model.focused.map(each => each.rank)).toEqual([1, 5]);
    expect(model.isFocused(model.places[0])).toBe('some');
    await model.enter('focus nobody');
    await model.enter('focus 3');
    await model.enter('detach');
    expect(model.entries.map(({ kind }) => kind)).toEqual(['note', 'note', 'note']);
    expect(model.focused).toHaveLength(2);
    await model.enter('focus all');
    expect(model.focused).toHaveLength(3);
    expect(source.sent).toEqual([]);
  });

  test('quit is for all, whatever the focus', async () => {
    const { model, source } = await session(stop(0), stop(1, { line: 9 }));
    model.focusOnly(model.places[0]);
    await model.enter('q');
    expect(source.sent).toEqual([[null, 'quit']]);
  });

  test('who steps is not asked, and who does not come back is named', async () => {
    const { model, source } = await session(stop(0), stop(1, { state: 'running' }));
    source.left = [100];
    await model.enter('n');
    expect(source.sent).toEqual([[[100], 'n']]);
    expect(entries(model).at(-1)).toEqual([
      'note',
      '',
      'Ranks 0 run on; they are shown when they stop again.'
    ]);
    await source.say(stop(0, { state: 'running' }), stop(1, { state: 'running' }));
    await model.enter('n');
    expect(source.sent).toHaveLength(1);
    expect(entries(model).at(-1)?.[2]).toContain('No rank of the focus waits');
  });

  test('a refusal is a note, and the session goes on', async () => {
    const { model, source } = await session(stop(0));
    source.refusal = 'The Jupyter server does not answer';
    await model.enter('p x');
    expect(entries(model).at(-1)).toEqual(['note', '', 'The Jupyter server does not answer']);
    expect(model.isBusy).toBe(false);
    source.refusal = '';
    await model.enter('p x');
    expect(source.sent).toHaveLength(2);
  });

  test('one line at a time', async () => {
    const { model, source } = await session(stop(0));
    let finish: () => void = () => undefined;
    source.answer = () => new Promise(resolve => (finish = () => resolve([])));
    const first = model.enter('n');
    await model.enter('p x');
    expect(source.sent).toHaveLength(1);
    finish();
    await first;
    expect(model.isBusy).toBe(false);
  });

  test('variables are folded by equal values, and asked for again at another place', async () => {
    const { model, source } = await session();
    source.values = {
      0: { lr: { type: 'float', value: '0.1' }, x: { type: 'int', value: '1' } },
      1: { lr: { type: 'float', value: '0.1' }, x: { type: 'int', value: '2' } }
    };
    await source.say(stop(0), stop(1));
    expect(model.variables).toEqual([
      { name: 'lr', groups: [{ ranks: '0-1', type: 'float', value: '0.1' }] },
      {
        name: 'x',
        groups: [
          { ranks: '0', type: 'int', value: '1' },
          { ranks: '1', type: 'int', value: '2' }
        ]
      }
    ]);
    source.values = { 0: { y: { type: 'int', value: '3' } } };
    await source.say(stop(0, { line: 5 }));
    expect(model.variables.map(({ name }) => name)).toEqual(['y']);
    await source.say();
    expect(model.variables).toEqual([]);
  });

  test('variables are asked for again after a line: it may have changed them', async () => {
    const { model, source } = await session(stop(0));
    source.values = { 0: { x: { type: 'int', value: '5' } } };
    await act(async () => model.enter('x = 5'));
    expect(model.variables.map(({ name }) => name)).toEqual(['x']);
  });

  test('arrow keys walk through what was typed', async () => {
    const { model } = await session(stop(0));
    await model.enter('p a');
    await model.enter('p b');
    await model.enter('p b');
    expect(model.previous('half')).toBe('p b');
    expect(model.previous('p b')).toBe('p a');
    expect(model.previous('p a')).toBe('p a');
    expect(model.next('p a')).toBe('p b');
    expect(model.next('p b')).toBe('half');
    expect(model.next('half')).toBe('half');
  });

  test('an empty line repeats the last one', async () => {
    const { model, source } = await session(stop(0));
    await model.enter('');
    await model.enter('n');
    await model.enter('  ');
    expect(source.sent.map(([, line]) => line)).toEqual(['n', 'n']);
  });

  test('a long session is cut', async () => {
    const { model } = await session(stop(0));
    for (let i = 0; i < MAX_ENTRIES + 5; i++) {
      await model.enter('focus ?');
    }
    expect(model.entries).toHaveLength(MAX_ENTRIES);
  });

  test('nothing is watched that cannot be seen, nor after the end', async () => {
    const { model, source } = await session(stop(0));
    model.isActive = false;
    expect(source.isWatched).toBe(false);
    model.isActive = true;
    expect(source.isWatched).toBe(true);
    await act(async () => source.end("mesh 'demo' has ended"));
    expect(model.ended).toBe("mesh 'demo' has ended");
    source.isWatched = false;
    model.isActive = true;
    expect(source.isWatched).toBe(false);
  });
});

describe('the view', () => {
  test('when nobody has stopped it says how to get there', async () => {
    const { node, source } = await view();
    expect(node.textContent).toContain('No rank has stopped.');
    expect(node.textContent).toContain('breakpoint()');
    expect(node.textContent).toContain('%mesh break FILE:LINE');
    await source.say(stop(0));
    expect(node.textContent).not.toContain('No rank has stopped.');
  });

  test('before anything was heard it does not say that nobody has stopped', async () => {
    const node = await show(<DebugView model={new DebugModel(new FakeSource())} />);
    expect(node.textContent).not.toContain('No rank has stopped.');
  });

  test('places, source and its line', async () => {
    const { node } = await view(
      stop(0),
      stop(1),
      stop(2),
      stop(3, { file: 'train.py', line: 8, source: [] })
    );
    const rows = [...node.querySelectorAll('.mnb-debug-who')].map(row => row.textContent);
    expect(rows).toEqual(['ranks 0-2: In [3] line 4 in step', 'rank 3: train.py line 8 in step']);
    expect(node.querySelector('[aria-current] .mnb-debug-who')?.textContent).toBe(rows[0]);
    expect(node.querySelector('.mnb-mod-here')?.textContent).toBe('\u2192 4  loss.backward()');
    await act(async () => node.querySelectorAll<HTMLElement>('.mnb-debug-where')[1].click());
    expect(node.querySelector('.mnb-mod-here')?.textContent).toBe('\u2192 8  loss.backward()');
    const boxes = [...node.querySelectorAll<HTMLInputElement>('input[type=checkbox]')];
    expect(boxes.map(box => box.checked)).toEqual([false, true]);
    await act(async () => boxes[0].click());
    expect(boxes.map(box => box.checked)).toEqual([true, true]);
  });

  test('buttons send their line to the focus; quit to all', async () => {
    const { node, source } = await view(stop(0), stop(1, { line: 9 }));
    await act(async () => node.querySelectorAll<HTMLElement>('.mnb-debug-where')[1].click());
    for (const label of ['Continue', 'Next', 'Step', 'Return', 'Where', 'Quit']) {
      await click(node, label);
    }
    const lines = ['continue', 'next', 'step', 'return', 'where'].map(line => [[101], line]);
    expect(source.sent).toEqual([...lines, [null, 'quit']]);
  });

  test('buttons are off while nobody waits', async () => {
    const { node } = await view(stop(0, { state: 'running' }));
    const button = [...node.querySelectorAll('button')].find(each => each.textContent === 'Next');
    expect(button?.disabled).toBe(true);
  });

  test('a line is typed, answered and found again with the arrow key', async () => {
    const { node, source } = await view(stop(0));
    source.answer = () => [{ ids: [100], ranks: '0', text: '<b>42</b>' }];
    await type(node, '.mnb-debug-line', 'p x');
    await submit(node);
    expect(input(node).value).toBe('');
    expect(node.querySelector('[role=log]')?.textContent).toBe('[0] > p x[0] <b>42</b>');
    await act(async () => {
      input(node).dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowUp', bubbles: true }));
    });
    expect(input(node).value).toBe('p x');
    await act(async () => {
      input(node).dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
    });
    expect(input(node).value).toBe('');
  });

  test('variables that differ are marked, equal ones stand once', async () => {
    const { node, source } = await view();
    source.values = { 0: { x: { type: 'int', value: '1' } }, 1: { x: { type: 'int', value: '2' } } };
    await source.say(stop(0), stop(1));
    const cells = [...node.querySelectorAll('.mnb-debug-variables tbody td')].map(cell => cell.textContent);
    expect(cells).toEqual(['[0]', '1', '[1]', '2']);
    expect(node.querySelectorAll('.mnb-mod-differs')).toHaveLength(2);
  });

  test('a mesh that has ended says so, and takes no line', async () => {
    const { node, source } = await view(stop(0));
    await act(async () => source.end("mesh 'demo' has ended"));
    expect(node.querySelector('[role=alert]')?.textContent).toBe("mesh 'demo' has ended");
    expect(input(node).disabled).toBe(true);
  });
});

test('the stream watches stops, acknowledges them, and asks again after a break', () => {
  vi.useFakeTimers();
  const sockets: FakeSocket[] = [];
  const stream = new Stream(() => {
    const socket = new FakeSocket();
    sockets.push(socket);
    return socket as unknown as WebSocket;
  });
  const onStops = vi.fn();
  const onEnd = vi.fn();
  const unwatch = stream.watchDebug('demo', onStops, onEnd);
  sockets[0].say({ type: 'hello', version: '1', protocol: 1 });
  expect(sockets[0].ops('watch')).toEqual([{ op: 'watch', id: 1, what: 'debug', mesh: 'demo' }]);
  sockets[0].say({ type: 'debug', id: 1, stops: [stop(0)] });
  expect(onStops).toHaveBeenCalledWith([stop(0)]);
  vi.advanceTimersToNextFrame();
  expect(sockets[0].ops('taken')).toEqual([{ op: 'taken', id: 1 }]);
  sockets[0].break();
  vi.advanceTimersByTime(1000);
  sockets[1].say({ type: 'hello', version: '1', protocol: 1 });
  expect(sockets[1].ops('watch')).toEqual([{ op: 'watch', id: 1, what: 'debug', mesh: 'demo' }]);
  unwatch();
  expect(sockets[1].ops('unwatch')).toEqual([{ op: 'unwatch', id: 1 }]);
  expect(onEnd).not.toHaveBeenCalled();
  stream.dispose();
  vi.useRealTimers();
});
