import { describe, expect, it } from 'vitest';
import { coordinates, layOut } from '../src/card/layout';

function heights(sizes: [string, number][], numRanks: number): number[][] {
  return layOut(sizes, numRanks).blocks.map(block => block.groups.map(rows => rows.length));
}

describe('layOut', () => {
  it.each<[[string, number][], string]>([
    [[['gpus', 8]], 'large'],
    [
      [
        ['hosts', 8],
        ['gpus', 8]
      ],
      'medium'
    ],
    [
      [
        ['hosts', 9],
        ['gpus', 8]
      ],
      'small'
    ]
  ])('shows %j as %s cells', (sizes, size) => {
    // prettier-ignore
    expect(layOut(sizes, sizes.reduce((n, [, k]) => n * k, 1)).size).toBe(size);
  });

  it('puts every rank somewhere, once', () => {
    for (const sizes of [[5], [17], [1024], [128, 8], [3, 7], [2, 40], [8, 16, 8], [2, 3, 1, 5]]) {
      const dims = sizes.map((size, i): [string, number] => [`d${i}`, size]);
      const numRanks = sizes.reduce((n, k) => n * k, 1);
      const ranks = layOut(dims, numRanks).blocks.flatMap(b => b.groups.flat().flatMap(row => row.ranks));
      expect(ranks).toEqual(Array.from({ length: numRanks }, (_, i) => i));
    }
  });

  it('breaks a long dimension into even lines', () => {
    const rows = layOut([['ranks', 24], ['x', 24]], 576).blocks[0].groups.flat(); // prettier-ignore
    expect(rows.every(row => row.ranks.length === 12)).toBe(true);
    expect(rows.slice(0, 4).map(row => row.label)).toEqual(['0', '', '1', '']);
  });

  it('puts long columns side by side, and outer dimensions into blocks', () => {
    expect(heights([['hosts', 128], ['gpus', 8]], 1024)).toEqual([[32, 32, 32, 32]]); // prettier-ignore
    const sizes: [string, number][] = [['pp', 2], ['dp', 2], ['hosts', 16], ['gpus', 8]]; // prettier-ignore
    expect(layOut(sizes, 512).blocks.map(block => block.label)).toEqual(
      ['pp=0, dp=0', 'pp=0, dp=1', 'pp=1, dp=0', 'pp=1, dp=1'] // prettier-ignore
    );
  });

  it('leaves out dimensions of size one, and what does not fit', () => {
    // prettier-ignore
    expect(layOut([['hosts', 8], ['gpus', 1]], 8)).toMatchObject({ down: '', right: 'hosts' });
    // prettier-ignore
    expect(layOut([['hosts', 2], ['gpus', 4]], 7)).toMatchObject({ down: '', right: 'ranks' });
    expect(layOut([], 1).blocks[0].groups[0][0].ranks).toEqual([0]);
  });

  it('tells where a rank is', () => {
    expect(coordinates([['hosts', 2], ['gpus', 4]], 7)).toBe('hosts=1, gpus=3'); // prettier-ignore
    expect(coordinates([['hosts', 2], ['gpus', 4]], 8)).toBe(''); // prettier-ignore
  });
});
