import type { IMeshSummary, IRank } from '../protocol';
import { rankSet, stateWord, tally, untranslated, type Translate } from '../words';

export type Health = 'ok' | 'busy' | 'trouble';

const FAILED = ['lost', 'unresponsive', 'stopped'];

/** Return the health of a mesh of which only the tally is known. */
export function summaryHealth(mesh: IMeshSummary): Health {
  const has = (state: string) => (mesh.states[state] ?? 0) > 0;
  if (mesh.waits) {
    return 'busy';
  }
  if (mesh.trouble || FAILED.some(has)) {
    return 'trouble';
  }
  return has('busy') || has('debugging') ? 'busy' : 'ok';
}

/** Ranks that failed alike. */
export interface IFailure {
  ranks: number[];
  state: string;
  reason: string;
}

/** Return the ranks that are lost, stopped or don't react, those with the same reason together. */
export function failures(ranks: IRank[]): IFailure[] {
  const found = new Map<string, IFailure>();
  for (const { rank, state, reason } of ranks.filter(r => FAILED.includes(r.state))) {
    const key = `${state}\n${reason}`;
    const failure = found.get(key);
    if (failure) {
      failure.ranks.push(rank);
    } else {
      found.set(key, { ranks: [rank], state, reason });
    }
  }
  return [...found.values()];
}

/** "rank 3 lost: killed by SIGKILL". */
export function failureText({ ranks, state, reason }: IFailure, t: Translate): string {
  const word = stateWord(state, t);
  const who = ranks.length === 1 ? t('rank %1 %2', ranks[0], word) : t('ranks %1 %2', rankSet(ranks), word);
  return reason ? `${who}: ${reason}` : who;
}

/** What the status bar says of a mesh: "demo: 6 ok, 1 busy, 1 lost". */
export function statusText(mesh: IMeshSummary, t: Translate = untranslated): string {
  if (mesh.trouble) {
    return t('%1: trouble', mesh.name);
  }
  if (mesh.waits) {
    return t('%1: waits for its hosts', mesh.name);
  }
  const { idle = 0, ...others } = mesh.states;
  const parts = [idle ? t('%1 ok', idle) : '', tally(others, t)];
  return `${mesh.name}: ${parts.filter(Boolean).join(', ') || t('no ranks')}`;
}

/** How many ranks a mesh has. */
export function numRanks(mesh: IMeshSummary): number {
  return mesh.sizes.reduce((product, [, size]) => product * size, 1);
}

/** What is said before a mesh is stopped: what is lost, and what stays. */
export function stopWarning(mesh: IMeshSummary, t: Translate = untranslated): string {
  const count = numRanks(mesh);
  const running = (mesh.states.busy ?? 0) + (mesh.states.debugging ?? 0);
  const who = count === 1 ? t('Its rank ends') : t('Its %1 ranks end', count);
  const what = t('all that is in their memory is lost: variables, models, actors.');
  const now = running ? ` ${t('%1 of them are at work just now.', running)}` : '';
  return `${who}; ${what}${now} ${t('What they have written stays in the journal.')}`;
}
