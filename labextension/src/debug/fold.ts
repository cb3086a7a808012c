import type { IDebugAnswers, IStop } from '../protocol';
import { rankSet, type Translate } from '../words';

/** Stops at one place. */
export interface IPlace {
  /** Equal for the same place. */
  readonly key: string;
  readonly stops: readonly IStop[];
}

/** A variable on the ranks of the focus, equal values merged. */
export interface IVariable {
  readonly name: string;
  readonly groups: readonly { readonly ranks: string; readonly type: string; readonly value: string }[];
}

/** The answer of a rank to `!!vars`. */
type Values = Record<string, { type: string; value: string }>;

/** Group stops by place, in the order of their ranks. */
export function foldPlaces(stops: readonly IStop[]): IPlace[] {
  const found = new Map<string, IStop[]>();
  for (const stop of stops) {
    const { state, file, line, function: name, what, thread, reason, error = '' } = stop;
    const key = JSON.stringify([state, file, line, name, what, thread, reason, error]);
    found.set(key, [...(found.get(key) ?? []), stop]);
  }
  return [...found].map(([key, each]) => ({ key, stops: each }));
}

/** Return the ranks stopped at a place: "ranks 0-2". */
export function whoText({ stops }: IPlace, t: Translate): string {
  const ranks = [...new Set(stops.map(stop => stop.rank))];
  return ranks.length === 1 ? t('rank %1', ranks[0]) : t('ranks %1', rankSet(ranks));
}

/** Return the text of a place: "In [3] line 4 in step". */
export function placeText({ stops: [first] }: IPlace, t: Translate): string {
  const place = t('%1 line %2', first.file, first.line);
  if (first.state === 'running') {
    return t('runs on from %1', place);
  }
  // The outermost code of a cell or a file has a made-up name.
  return first.function && !first.function.startsWith('<') ? t('%1 in %2', place, first.function) : place;
}

/** Return the variables in answers to `!!vars`; other answers are left out. */
export function foldVariables({ answers }: IDebugAnswers, ranksOf: (ids: number[]) => number[]): IVariable[] {
  const names = new Map<string, Map<string, { ids: number[]; type: string; value: string }>>();
  for (const { ids, text } of answers) {
    for (const [name, { type, value }] of Object.entries(valuesOf(text))) {
      const groups = names.get(name) ?? new Map<string, { ids: number[]; type: string; value: string }>();
      const key = JSON.stringify([type, value]);
      const group = groups.get(key) ?? { ids: [], type, value };
      group.ids.push(...ids);
      names.set(name, groups.set(key, group));
    }
  }
  return [...names]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, groups]) => ({
      name,
      groups: [...groups.values()].map(({ ids, type, value }) => ({
        ranks: rankSet(ranksOf(ids)),
        type,
        value
      }))
    }));
}

function valuesOf(text: string): Values {
  try {
    const found: unknown = JSON.parse(text);
    return typeof found === 'object' && found !== null ? (found as Values) : {};
  } catch {
    return {};
  }
}

/** Return the ranks of a set such as 0-3,7; null if it isn't one. */
export function parseRanks(text: string): Set<number> | null {
  const found = new Set<number>();
  for (const part of text.split(',')) {
    const match = /^\s*(\d+)(?:\s*-\s*(\d+))?\s*$/.exec(part);
    if (!match) {
      return null;
    }
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (last < first || last - first > 100_000) {
      return null;
    }
    for (let rank = first; rank <= last; rank++) {
      found.add(rank);
    }
  }
  return found;
}
