import { expect, test } from 'vitest';
import { failures, failureText, statusText, stopWarning, summaryHealth } from '../src/panel/health';
import { untranslated } from '../src/words';
import { rank, summary } from './meshes';

test('the status bar counts what is idle as ok', () => {
  expect(statusText(summary({ idle: 8 }))).toBe('demo: 8 ok');
  expect(statusText(summary({ idle: 6, lost: 1, busy: 1 }))).toBe('demo: 6 ok, 1 busy, 1 lost');
  expect(statusText(summary({ busy: 8 }))).toBe('demo: 8 busy');
  const waiting = { ...summary({}), waits: true };
  expect(statusText(waiting)).toBe('demo: waits for its hosts');
  expect(summaryHealth(waiting)).toBe('busy');
  expect(statusText(summary({}, { trouble: 'no answer' }))).toBe('demo: trouble');
});

test('health is told by the worst state', () => {
  expect(summaryHealth(summary({ idle: 8 }))).toBe('ok');
  expect(summaryHealth(summary({ idle: 7, debugging: 1 }))).toBe('busy');
  expect(summaryHealth(summary({ busy: 7, lost: 1 }))).toBe('trouble');
  expect(summaryHealth(summary({ idle: 8, lost: 0 }))).toBe('ok');
  expect(summaryHealth(summary({}, { trouble: 'another version' }))).toBe('trouble');
});

test('ranks that failed alike are one failure', () => {
  const lost = (n: number) => rank(n, { state: 'lost', reason: 'killed by SIGKILL' });
  const found = failures([
    rank(0),
    lost(1),
    lost(2),
    lost(3),
    rank(4, { state: 'unresponsive', reason: 'no answer for 30 s' })
  ]);
  expect(found.map(failure => failureText(failure, untranslated))).toEqual([
    'ranks 1-3 lost: killed by SIGKILL',
    'rank 4 unresponsive: no answer for 30 s'
  ]);
});

test('before a mesh is stopped it is said what is lost', () => {
  const text = stopWarning(summary({ idle: 6, busy: 2 }));
  expect(text).toContain('Its 8 ranks end');
  expect(text).toContain('variables, models, actors');
  expect(text).toContain('2 of them are at work');
  expect(stopWarning(summary({ idle: 1 }))).not.toContain('at work');
});
