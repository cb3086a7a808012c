import * as React from 'react';
import { act } from 'react';
import { expect, test, vi } from 'vitest';
import { spansOf } from '../src/logs/ansi';
import { ApiError } from '../src/errors';
import { LogModel, type ILogSource } from '../src/logs/model';
import { LogView } from '../src/logs/view';
import type { ILogLine, ILogPage } from '../src/protocol';
import { click, show, submit, type } from './react';

/** Lines 0 to `size`, of which a position is the number; what is followed comes from `write`. */
class FakeSource implements ILogSource {
  asked: [string, string, number | null][] = [];
  refusal = '';
  write: ((texts: string[]) => void) | null = null;
  end: (reason: string) => void = () => undefined;
  followed: number | null = null;

  constructor(
    private _size: number,
    private readonly _pageSize = 100
  ) {}

  async page(ranks: string, grep: string, before: number | null): Promise<ILogPage> {
    this.asked.push([ranks, grep, before]);
    if (this.refusal) {
      throw new ApiError(400, this.refusal);
    }
    const after = before ?? this._size;
    const first = Math.max(0, after - this._pageSize);
    const lines = Array.from({ length: after - first }, (_, i) => line(`line ${first + i}`));
    return { lines, before: first > 0 ? first : null, after };
  }

  follow(
    _ranks: string,
    _grep: string,
    after: number,
    onLines: (lines: ILogLine[], after: number) => void,
    onEnd: (reason: string) => void
  ): () => void {
    this.followed = after;
    this.write = texts => {
      this._size += texts.length;
      onLines(texts.map(line), this._size);
    };
    this.end = onEnd;
    return () => {
      this.write = null;
    };
  }
}

function line(text: string): ILogLine {
  return { rank: 3, stream: 'stdout', when: 0, text };
}

const texts = (model: LogModel) => model.segments.flatMap(s => s.lines.map(l => l.text));
const many = (count: number) => Array.from({ length: count }, (_, i) => `new ${i}`);

test('the last page comes first, then what is written after it', async () => {
  const source = new FakeSource(250);
  const model = new LogModel('', source);
  await model.load();
  expect(texts(model)).toHaveLength(100);
  expect(texts(model).at(-1)).toBe('line 249');
  expect(source.followed).toBe(250);
  source.write?.(['new']);
  expect(texts(model).at(-1)).toBe('new');
});

test('older pages are put above, until there are none', async () => {
  const source = new FakeSource(250);
  const model = new LogModel('', source);
  await model.load();
  await model.older();
  await model.older();
  expect(texts(model).slice(0, 2)).toEqual(['line 0', 'line 1']);
  expect(texts(model)).toHaveLength(250);
  expect(model.hasOlder).toBe(false);
  await model.older();
  expect(source.asked.map(([, , before]) => before)).toEqual([null, 150, 50]);
});

test('following drops the oldest lines, which can be read again', async () => {
  const source = new FakeSource(100);
  const model = new LogModel('', source, 1000);
  await model.load();
  expect(model.hasOlder).toBe(false);
  for (let i = 0; i < 6; i++) {
    source.write?.(many(200));
  }
  expect(model.numLines).toBeLessThanOrEqual(1000);
  expect(model.isCutAbove).toBe(true);
  expect(model.hasOlder).toBe(true);
  const first = model.segments[0].start;
  await model.older();
  expect(source.asked.at(-1)?.[2]).toBe(first);
});

test('one piece that is too large is cut, too', async () => {
  const source = new FakeSource(0);
  const model = new LogModel('', source, 1000);
  await model.load();
  source.write?.(many(5000));
  expect(model.numLines).toBe(1000);
  expect(texts(model).at(-1)).toBe('new 4999');
});

test('reading far back drops the newest lines and stops following', async () => {
  const source = new FakeSource(5000);
  const model = new LogModel('', source, 1000);
  await model.load();
  for (let i = 0; i < 12; i++) {
    await model.older();
  }
  expect(model.numLines).toBe(1000);
  expect(texts(model).at(-1)).toBe('line 4699');
  expect(model.isCutBelow).toBe(true);
  expect(model.isFollowing).toBe(false);
  expect(source.write).toBeNull();
  model.isFollowing = true;
  await vi.waitFor(() => expect(texts(model).at(-1)).toBe('line 4999'));
  expect(model.isCutBelow).toBe(false);
});

test('what is hidden is not followed, and goes on where it was', async () => {
  const source = new FakeSource(10);
  const model = new LogModel('', source);
  await model.load();
  source.write?.(['a', 'b']);
  model.isActive = false;
  expect(source.write).toBeNull();
  model.isActive = true;
  expect(source.followed).toBe(12);
});

test('the answer to an earlier query is not shown', async () => {
  const source = new FakeSource(10);
  const model = new LogModel('', source);
  const first = model.load('1', '');
  const second = model.load('2', '');
  await Promise.all([first, second]);
  expect(texts(model)).toHaveLength(10);
  expect(model.ranks).toBe('2');
});

test('a bad regular expression is refused in the words of the server', async () => {
  const source = new FakeSource(10);
  const model = new LogModel('', source);
  const node = await show(<LogView model={model} />);
  await act(async () => model.load());
  source.refusal = "'(' is not a regular expression: missing )";
  await type(node, 'input[type=search]', '(');
  await submit(node);
  expect(source.asked.at(-1)).toEqual(['', '(', null]);
  expect(node.querySelector('[role=alert]')?.textContent).toBe(source.refusal);
  expect(node.querySelector('input[type=search]')?.getAttribute('aria-invalid')).toBe('true');
});

test('lines show their rank, and which of them are errors', async () => {
  const source = new FakeSource(1);
  const model = new LogModel('', source);
  const node = await show(<LogView model={model} />);
  await act(async () => model.load());
  await act(async () => source.write?.(['\x1b[31mred\x1b[0m plain']));
  const lines = [...node.querySelectorAll('.mnb-log-line')];
  expect(lines.map(l => l.textContent)).toEqual(['[3] line 0', '[3] red plain']);
  expect(lines[1].querySelector('.mnb-ansi-red')?.textContent).toBe('red');
});

test('nothing written, nothing found, and the end have words of their own', async () => {
  const source = new FakeSource(0);
  const model = new LogModel('', source);
  const node = await show(<LogView model={model} />);
  await act(async () => model.load());
  expect(node.textContent).toContain('Nothing was written yet');
  await act(async () => model.load('', 'x'));
  expect(node.textContent).toContain('No line matches');
  await act(async () => source.end('mesh demo was stopped'));
  expect(node.textContent).toContain('Nothing more will come: mesh demo was stopped');
});

test('the bottom is kept in view until people scroll up', async () => {
  const source = new FakeSource(50);
  const model = new LogModel('', source);
  const node = await show(<LogView model={model} />);
  const scroller = node.querySelector('.mnb-log-lines') as HTMLElement;
  let height = 1000;
  Object.defineProperty(scroller, 'scrollHeight', { get: () => height });
  Object.defineProperty(scroller, 'clientHeight', { value: 200 });
  await act(async () => model.load());
  expect(scroller.scrollTop).toBe(1000);
  scroller.scrollTop = 300;
  await act(async () => scroller.dispatchEvent(new Event('scroll', { bubbles: true })));
  height = 1200;
  await act(async () => source.write?.(['new']));
  expect(scroller.scrollTop).toBe(300);
  scroller.scrollTop = 1000;
  await act(async () => scroller.dispatchEvent(new Event('scroll', { bubbles: true })));
  height = 1300;
  await act(async () => source.write?.(['newer']));
  expect(scroller.scrollTop).toBe(1300);
});

test('at the top the page above is read, and the line on top stays', async () => {
  const source = new FakeSource(150);
  const model = new LogModel('', source);
  const node = await show(<LogView model={model} />);
  const scroller = node.querySelector('.mnb-log-lines') as HTMLElement;
  Object.defineProperty(scroller, 'scrollHeight', { get: () => 10 * model.numLines });
  Object.defineProperty(scroller, 'clientHeight', { value: 200 });
  await act(async () => model.load());
  scroller.scrollTop = 10;
  await act(async () => scroller.dispatchEvent(new Event('scroll', { bubbles: true })));
  expect(model.numLines).toBe(150);
  expect(scroller.scrollTop).toBe(510);
});

test('the button Older reads the page above', async () => {
  const source = new FakeSource(150);
  const model = new LogModel('', source);
  const node = await show(<LogView model={model} />);
  await act(async () => model.load());
  await click(node, 'Older');
  expect(model.numLines).toBe(150);
  expect(model.hasOlder).toBe(false);
});

test('colours are kept, other escapes are left out', () => {
  expect(spansOf('plain')).toEqual([{ text: 'plain', look: '' }]);
  expect(spansOf('\x1b[1;32mok\x1b[39m bold\x1b[0m end')).toEqual([
    { text: 'ok', look: 'mnb-ansi-green mnb-ansi-bold' },
    { text: ' bold', look: 'mnb-ansi-bold' },
    { text: ' end', look: '' }
  ]);
  expect(spansOf('\x1b[2K\x1b[1Ga\x1b]0;title\x07b')).toEqual([
    { text: 'a', look: '' },
    { text: 'b', look: '' }
  ]);
  expect(spansOf('\x1b[38;5;31mx')).toEqual([{ text: 'x', look: '' }]);
});

test('of a line that was written again the last is shown', () => {
  expect(spansOf(' 10%\r 20%\r')).toEqual([{ text: ' 20%', look: '' }]);
});

test('a search that has found nothing so far can go on', async () => {
  const source = new FakeSource(0);
  const model = new LogModel('', source);
  source.page = async (_ranks, _grep, before) =>
    before === null
      ? { lines: [], before: 50, after: 100 }
      : { lines: [line('found')], before: null, after: 50 };
  const node = await show(<LogView model={model} />);
  await act(async () => model.load('', 'found'));
  expect(node.textContent).toContain('Older searches on');
  await click(node, 'Older');
  expect(texts(model)).toEqual(['found']);
  expect(model.hasOlder).toBe(false);
});
