import { describe, expect, it } from 'vitest';
import {
  bytes,
  duration,
  health,
  isNearlyUp,
  limitText,
  rankSet,
  rankText,
  shapeText,
  tally,
  transfersText,
  untranslated
} from '../src/words';
import { host, rank, status } from './fakes';

describe('words', () => {
  it.each([
    [null, 'n/a'],
    [0, '0 B'],
    [999.7, '1000 B'],
    [1023.7, '1 KiB'],
    [1_310_000_000, '1.22 GiB'],
    [88 * 2 ** 30, '88 GiB'],
    [2500 * 2 ** 40, '2500 TiB']
  ])('writes %s bytes as %s', (n, text) => expect(bytes(n)).toBe(text));

  it.each([
    [-3, '0 s'],
    [12.9, '12 s'],
    [90, '90 s'],
    [60, '1 min'],
    [300, '5 min'],
    [28800, '8 h'],
    [3 * 86400, '3 d']
  ])('writes %s seconds as %s', (seconds, text) => expect(duration(seconds)).toBe(text));

  it.each([
    [null, ''],
    [5400, 'slurm job 7, 90 min left'],
    [30, 'slurm job 7, 30 s left'],
    [-1, "slurm job 7, the hosts' time is up"]
  ])('says of a limit in %s seconds: %s', (left, text) => {
    const ends_at = left === null ? null : 1000 + left;
    expect(limitText({ ends_at, job: 'slurm job 7' }, untranslated, 1000)).toBe(text);
  });

  it('says what hosts have cost, up to now', () => {
    const cost = { num_gpus: 32, usd: 57.6, usd_per_hour: 64, counted_at: 1000 };
    expect(limitText({ ends_at: 8080, job: 'slurm job 7', cost }, untranslated, 1030)).toBe(
      'slurm job 7, 117 min left, 32 GPUs, about 58.13 $ so far'
    );
    expect(limitText({ ends_at: null, job: 'job', cost: { ...cost, num_gpus: 1 } }, untranslated, 0)).toBe(
      'job, 1 GPU, about 57.60 $ so far'
    );
    expect([isNearlyUp(1599, 1000), isNearlyUp(1601, 1000), isNearlyUp(null, 1000)]).toEqual([
      true,
      false,
      false
    ]);
  });

  it.each([
    [[], ''],
    [[3], '3'],
    [[7, 0, 1, 2, 3, 3], '0-3,7']
  ])('writes ranks %j as %j', (ranks, text) => expect(rankSet(ranks)).toBe(text));

  it('says what was moved', () => {
    const shm = { path: 'shm', num: 3, read_bytes: 3 * 2 ** 30, written_bytes: 2 ** 30, seconds: 0.5 };
    const tcp = { path: 'tcp', num: 1, read_bytes: 0, written_bytes: 0, seconds: 0 };
    expect(transfersText([shm, tcp], untranslated)).toBe('shm 4 GiB, 8.59 GB/s; tcp 0 B, 0 GB/s');
    expect(transfersText(undefined, untranslated)).toBe('');
  });

  it('counts up from the usual to the worst', () => {
    expect(tally({ lost: 1, idle: 6, busy: 1, stopped: 0, odd: 2 })).toBe('6 idle, 1 busy, 1 lost, 2 odd');
  });

  it('names dimensions, ranks and reasons', () => {
    expect(shapeText([['hosts', 2], ['gpus', 4]])).toBe('hosts=2, gpus=4'); // prettier-ignore
    expect(rankText(rank(3, { state: 'lost', reason: 'killed by SIGKILL' }))).toBe(
      'rank 3, lost: killed by SIGKILL'
    );
    expect(untranslated('%2 of %1, %3', 'a', 5)).toBe('5 of a, %3');
  });

  it('says how a mesh does', () => {
    const busy = rank(0, { state: 'busy' });
    expect(health(status())).toBe('ok');
    expect(health(status([['gpus', 1]], { ranks: [busy] }))).toBe('busy');
    expect(health(status([['gpus', 2]], { ranks: [busy, rank(1, { state: 'unresponsive' })] }))).toBe(
      'trouble'
    );
    expect(health(status(undefined, { hosts: [host(0, { state: 'lost' })] }))).toBe('trouble');
  });
});
