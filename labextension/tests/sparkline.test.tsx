import { expect, test } from 'vitest';
import { sparklinePath } from '../src/panel/sparkline';

test('a line goes from the oldest at the left to the newest at the right', () => {
  expect(sparklinePath([0, 50, 100], 20, 10)).toBe('M0,10L10,5L20,0');
});

test('it is broken where there was no reading', () => {
  expect(sparklinePath([0, 100, null, 0, 100], 40, 10)).toBe('M0,10L10,0M30,10L40,0');
});

test('a reading between gaps is a dot', () => {
  expect(sparklinePath([null, 50, null], 20, 10)).toBe('M10,5h0.01');
  expect(sparklinePath([50], 20, 10)).toBe('M0,5h0.01');
});

test('nothing is nothing, and what is out of range stays inside', () => {
  expect(sparklinePath([], 20, 10)).toBe('');
  expect(sparklinePath([null, null], 20, 10)).toBe('');
  expect(sparklinePath([120, -3], 20, 10)).toBe('M0,0L20,10');
});
