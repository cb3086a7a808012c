import type { IStartRequest } from '../protocol';
import { untranslated, type Translate } from '../words';

/** What people have typed into the start form. */
export interface IDraft {
  name: string;
  dimension: string;
  size: string;
  job: 'local' | 'process';
  hosts: string;
  idleTimeout: string;
  processGroup: '' | 'auto' | 'nccl' | 'gloo';
}

export type Field = keyof IDraft;

/** What is wrong, per field. */
export type Problems = Partial<Record<Field, string>>;

export const EMPTY_DRAFT: IDraft = {
  name: 'mesh',
  dimension: '',
  size: '',
  job: 'local',
  hosts: '',
  idleTimeout: '8h',
  processGroup: ''
};

const NAME = /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/;
const DIMENSION = /^[A-Za-z_][A-Za-z0-9_]*$/;
const DURATION = /^(\d+(\.\d+)?|\.\d+)(s|m|min|h|d)?$/;

/** Return what is wrong with a draft; empty if it can be sent. */
export function findProblems(draft: IDraft, taken: string[] = [], t: Translate = untranslated): Problems {
  const found: Problems = {
    name: checkName(draft.name.trim(), taken, t),
    dimension: checkDimension(draft, t),
    size: checkSize(draft, t),
    hosts:
      draft.job === 'process' && !isCount(draft.hosts) ? t('The number of hosts is 1 or more') : undefined,
    idleTimeout: checkDuration(draft.idleTimeout.trim(), t)
  };
  return Object.fromEntries(Object.entries(found).filter(([, problem]) => problem));
}

/** Return the request of a draft without problems. */
export function requestOf(draft: IDraft): IStartRequest {
  return {
    name: draft.name.trim(),
    dims: draft.size.trim() ? [[draft.dimension.trim(), Number(draft.size)]] : [],
    num_hosts: draft.job === 'process' ? Number(draft.hosts) : 0,
    job: draft.job,
    idle_timeout: draft.idleTimeout.trim(),
    process_group: draft.processGroup
  };
}

function checkName(name: string, taken: string[], t: Translate): string | undefined {
  if (!NAME.test(name)) {
    return t("A mesh's name is up to 64 letters, digits, '-' and '_', beginning with a letter or '_'");
  }
  return taken.includes(name) ? t('Mesh %1 runs already; choose another name', name) : undefined;
}

function checkDimension(draft: IDraft, t: Translate): string | undefined {
  const name = draft.dimension.trim();
  if (!name) {
    return draft.size.trim() ? t('Name the dimension, as in gpus') : undefined;
  }
  if (name === 'hosts') {
    return t('Hosts have a field of their own, below');
  }
  return DIMENSION.test(name) ? undefined : t("A dimension's name is letters, digits and '_'");
}

function checkSize(draft: IDraft, t: Translate): string | undefined {
  if (!draft.size.trim()) {
    return draft.dimension.trim() ? t('Give a size, or leave both empty') : undefined;
  }
  return isCount(draft.size) ? undefined : t('A size is a whole number, 1 or more');
}

function checkDuration(text: string, t: Translate): string | undefined {
  const isGood = DURATION.test(text) && parseFloat(text) > 0;
  return isGood ? undefined : t('A duration is a number with s, m, h or d, as in 90s or 8h');
}

/** Whether a text is a whole number, 1 or more. */
export function isCount(text: string): boolean {
  return /^\s*[1-9]\d{0,5}\s*$/.test(text);
}
