import { expect, test } from 'vitest';
import metadata from '../package.json';
import schema from '../schema/plugin.json';
import { DEFAULT_SETTINGS } from '../src/settings';
import { VERSION } from '../src/transport/version';

test('the version is that of the package', () => {
  expect(VERSION).toBe(metadata.version);
});

test('the defaults are those of the schema', () => {
  const defaults = Object.entries(schema.properties).map(([name, property]) => [name, property.default]);
  expect(DEFAULT_SETTINGS).toEqual(Object.fromEntries(defaults));
});
