import { isCount } from './start';

/** Read dimensions as people write them, "hosts=2, gpus=4"; null if that can't be read. */
export function parseSizes(text: string): [string, number][] | null {
  const pairs = text.split(',').map(part => part.split('='));
  const isGood = pairs.every(
    pair => pair.length === 2 && /^\s*[A-Za-z_]\w*\s*$/.test(pair[0]) && isCount(pair[1])
  );
  return isGood ? pairs.map(([name, size]) => [name.trim(), Number(size)]) : null;
}
