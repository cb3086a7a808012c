import type {
  ICollective,
  ICost,
  IHost,
  IMeshStatus,
  IMeshSummary,
  IRank,
  ITransfers,
  RankState
} from './protocol';

/** Translates a sentence; %1, %2 ... stand for the arguments, as in JupyterLab's `trans.__`. */
export type Translate = (text: string, ...args: (string | number)[]) => string;

/** Translates nothing; only puts the arguments in. */
export const untranslated: Translate = (text, ...args) =>
  text.replace(/%(\d)/g, (whole, digit: string) => String(args[Number(digit) - 1] ?? whole));

/** Shown where a number isn't known. */
export const UNKNOWN = 'n/a';

/** An engine's limit that is nearer is shown as a warning. */
const NEARLY_UP_S = 600;

/** Every state, from the usual to the worst: the order in which they are counted up. */
const STATES: readonly RankState[] = [
  'idle',
  'busy',
  'debugging',
  'starting',
  'stopping',
  'stopped',
  'unresponsive',
  'lost'
];

const TROUBLE: ReadonlySet<string> = new Set(['lost', 'unresponsive', 'stopped']);
const BUSY: ReadonlySet<string> = new Set(['busy', 'debugging']);

/** Return a size in powers of 1024, by its IEC name: "1.22 GiB". */
export function bytes(n: number | null): string {
  if (n === null) {
    return UNKNOWN;
  }
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let size = n;
  let unit = 0;
  // 1023.6 would be written as 1024, so it's already one of the next unit.
  while (size >= 1023.5 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 999.5 ? threeDigits(size) : Math.round(size)} ${units[unit]}`;
}

/** Return a duration as people write it: "12 s", "5 min", "3 h". */
export function duration(seconds: number): string {
  const rest = Math.max(0, seconds);
  for (const [size, unit] of [
    [86400, 'd'],
    [3600, 'h'],
    [60, 'min']
  ] as const) {
    if (rest >= 2 * size || (rest >= size && rest % size === 0)) {
      return `${Math.floor(rest / size)} ${unit}`;
    }
  }
  return `${Math.floor(rest)} s`;
}

/** Return a share per cent: "63%". */
export function percent(share: number | null): string {
  return share === null ? UNKNOWN : `${Math.round(share)}%`;
}

/** Return the time of day, of a time in seconds since the epoch; with the day if that isn't today. */
export function clock(when: number, now: number = Date.now() / 1000): string {
  const date = new Date(when * 1000);
  const time = date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit' });
  const isToday = date.toDateString() === new Date(now * 1000).toDateString();
  return isToday ? time : dateAndTime(when);
}

/** Return day and time of a time in seconds since the epoch: for what is kept, and read on other days. */
export function dateAndTime(when: number): string {
  return new Date(when * 1000).toLocaleString([], {
    day: 'numeric',
    month: 'short',
    year: 'numeric',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit'
  });
}

/** Return ranks as a set: "0-3,7". */
export function rankSet(ranks: number[]): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; i++) {
    const first = sorted[i];
    while (sorted[i + 1] === sorted[i] + 1) {
      i += 1;
    }
    parts.push(first === sorted[i] ? `${first}` : `${first}-${sorted[i]}`);
  }
  return parts.join(',');
}

/** Return how many are in each state: "6 idle, 1 busy, 1 lost". */
export function tally(states: IMeshSummary['states'], t: Translate = untranslated): string {
  const known = STATES.filter(state => states[state]);
  const others = Object.keys(states).filter(state => states[state] && !known.includes(state as RankState));
  return [...known, ...others].map(state => `${states[state]} ${stateWord(state, t)}`).join(', ');
}

/** Return how many ranks are in each state. */
export function countStates(ranks: readonly IRank[]): IMeshSummary['states'] {
  const states: IMeshSummary['states'] = {};
  for (const { state } of ranks) {
    states[state] = (states[state] ?? 0) + 1;
  }
  return states;
}

/** Return the dimensions: "hosts=2, gpus=4". */
export function shapeText(sizes: [string, number][]): string {
  return sizes.map(([name, size]) => `${name}=${size}`).join(', ');
}

/** Return the health of a mesh, in one word. */
export function health(status: IMeshStatus): 'ok' | 'busy' | 'trouble' {
  if (
    status.ranks.some(rank => TROUBLE.has(rank.state)) ||
    status.hosts.some(host => host.state === 'lost')
  ) {
    return 'trouble';
  }
  return status.ranks.some(rank => BUSY.has(rank.state)) ? 'busy' : 'ok';
}

/** Return a state of a rank or host in the reader's language. */
export function stateWord(state: string, t: Translate = untranslated): string {
  return WORDS[state]?.(t) ?? state;
}

/**
 * Return a rank with its state and the reason, "rank 3, lost: killed by SIGKILL", or its activity, "rank 3,
 * busy: cell #17".
 */
export function rankText(rank: IRank, t: Translate = untranslated): string {
  const text = t('rank %1, %2', rank.rank, stateWord(rank.state, t));
  const more = rank.reason || rank.doing;
  return more ? `${text}: ${more}` : text;
}

/** Each literal stands in a call, so that translators' tools find it. */
const WORDS: { [state: string]: ((t: Translate) => string) | undefined } = {
  starting: t => t('starting'),
  idle: t => t('idle'),
  busy: t => t('busy'),
  debugging: t => t('debugging'),
  unresponsive: t => t('unresponsive'),
  stopping: t => t('stopping'),
  stopped: t => t('stopped'),
  lost: t => t('lost'),
  expected: t => t('expected'),
  up: t => t('up'),
  leaving: t => t('leaving')
};

function threeDigits(size: number): string {
  return String(Number(size.toPrecision(3)));
}

/** Return the transfers of the data plane: "shm 1.5 GiB, 8.1 GB/s; tcp 12 MiB, 0.9 GB/s". */
export function transfersText(all: ITransfers[] | undefined, t: Translate): string {
  return (all ?? [])
    .map(({ path, read_bytes, written_bytes, seconds }) => {
      const size = read_bytes + written_bytes;
      const rate = seconds > 0 ? threeDigits(size / seconds / 1e9) : '0';
      return t('%1 %2, %3 GB/s', path, bytes(size), rate);
    })
    .join('; ');
}

/** Return an operation in words: "all_reduce #41 float32[2, 3]". */
export function collectiveText({ name, sequence, shape, dtype }: ICollective): string {
  const number = sequence > 0 ? ` #${sequence}` : '';
  const tensor = shape ? ` ${dtype}[${shape.join(', ')}]` : '';
  return `${name}${number}${tensor}`;
}

/**
 * Return the time that an engine leaves a mesh its hosts, and what they have cost; empty where it isn't
 * limited and has no price.
 */
export function limitText(
  { ends_at, job, cost }: Pick<IMeshStatus, 'ends_at' | 'job' | 'cost'>,
  t: Translate,
  now = Date.now() / 1000
): string {
  const left =
    typeof ends_at !== 'number'
      ? ''
      : ends_at > now
        ? t('%1 left', duration(ends_at - now))
        : t("the hosts' time is up");
  const price = costText(cost, t, now);
  return left || price ? [job, left, price].filter(Boolean).join(', ') : '';
}

/** Whether an engine takes the hosts away soon: then it's time to ask for more. */
export function isNearlyUp(endsAt: number | null | undefined, now = Date.now() / 1000): boolean {
  return typeof endsAt === 'number' && endsAt - now < NEARLY_UP_S;
}

/** Return what hosts have cost: "32 GPUs, about 58.13 $ so far"; empty if that isn't known. */
export function costText(cost: ICost | null | undefined, t: Translate, now = Date.now() / 1000): string {
  if (!cost) {
    return '';
  }
  const usd = cost.usd + (cost.usd_per_hour * Math.max(0, now - cost.counted_at)) / 3600;
  const gpus = cost.num_gpus === 1 ? t('1 GPU') : t('%1 GPUs', cost.num_gpus);
  return t('%1, about %2 $ so far', gpus, usd.toFixed(2));
}

/** Return a number of hosts, or a range: "1 host", "2..8 hosts". */
export function hostsText(num: string, t: Translate = untranslated): string {
  return num === '1' ? t('1 host') : t('%1 hosts', num);
}

/** Return the differences between hosts and the notebook, with what to type: a line for each kind. */
export function differences(hosts: IHost[], t: Translate = untranslated): string[] {
  const found = new Map<string, number[]>();
  for (const { index, differs } of hosts) {
    if (differs) {
      found.set(differs, [...(found.get(differs) ?? []), index]);
    }
  }
  return [...found].map(([text, which]) =>
    which.length > 1
      ? t('Hosts %1 differ: %2', rankSet(which), text)
      : t('Host %1 differs: %2', rankSet(which), text)
  );
}
