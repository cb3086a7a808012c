import type { ICluster, IStartRequest } from '../protocol';
import { untranslated, type Translate } from '../words';

/** What people have typed into the start form. */
export interface IDraft {
  name: string;
  dimension: string;
  size: string;
  /** local, process, or the name of a cluster after `on:`. */
  job: string;
  hosts: string;
  gpus: string;
  time: string;
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
  gpus: '',
  time: '',
  idleTimeout: '8h',
  processGroup: ''
};

/** Before the name of a cluster, where hosts come from. */
export const ON = 'on:';
const HOSTS = /^([1-9]\d{0,5}(\.\.[1-9]\d{0,5})?|[A-Za-z]\S*)$/;
const NAME = /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/;
const DIMENSION = /^[A-Za-z_][A-Za-z0-9_]*$/;
const DURATION = /^(\d+(\.\d+)?|\.\d+)(s|m|min|h|d)?$/;

/** Return what is wrong with a draft; empty if it can be sent. */
export function findProblems(
  draft: IDraft,
  taken: string[] = [],
  t: Translate = untranslated,
  clusters: ICluster[] = []
): Problems {
  const found: Problems = {
    name: checkName(draft.name.trim(), taken, t),
    dimension: checkDimension(draft, t),
    size: checkSize(draft, t),
    job: whyNot(draft, clusters, t),
    hosts: checkHosts(draft, t),
    gpus: clusterOf(draft) && draft.gpus.trim() && !isCount(draft.gpus) ? sizeProblem(t) : undefined,
    time: clusterOf(draft) && draft.time.trim() ? checkDuration(draft.time.trim(), t) : undefined,
    idleTimeout: checkDuration(draft.idleTimeout.trim(), t)
  };
  return Object.fromEntries(Object.entries(found).filter(([, problem]) => problem));
}

/** Return the request of a draft without problems. */
export function requestOf(draft: IDraft): IStartRequest {
  const on = clusterOf(draft);
  const request: IStartRequest = {
    name: draft.name.trim(),
    dims: draft.size.trim() ? [[draft.dimension.trim(), Number(draft.size)]] : [],
    num_hosts: draft.job === 'process' ? Number(draft.hosts) : 0,
    job: draft.job === 'process' ? 'process' : 'local',
    idle_timeout: draft.idleTimeout.trim(),
    process_group: draft.processGroup
  };
  const hosts = { on, hosts: draft.hosts.trim(), gpus: Number(draft.gpus), time: draft.time.trim() };
  return on ? { ...request, ...hosts } : request;
}

/** The cluster that hosts are asked for at; empty: this machine. */
export function clusterOf({ job }: IDraft): string {
  return job.startsWith(ON) ? job.slice(ON.length) : '';
}

/** Why nothing can be asked for at the chosen cluster. */
function whyNot(draft: IDraft, clusters: ICluster[], t: Translate): string | undefined {
  const cluster = clusters.find(({ name }) => name === clusterOf(draft));
  return cluster?.why_not ? t('%1 cannot be used here: %2', cluster.name, cluster.why_not) : undefined;
}

function checkHosts(draft: IDraft, t: Translate): string | undefined {
  const text = draft.hosts.trim();
  if (draft.job === 'process') {
    return isCount(text) ? undefined : t('The number of hosts is 1 or more');
  }
  const isGood = !clusterOf(draft) || !text || HOSTS.test(text);
  return isGood ? undefined : t('Hosts are a number, a range or names, as in 4, 2..8 or node[1-4]');
}

function sizeProblem(t: Translate): string {
  return t('A size is a whole number, 1 or more');
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
  return isCount(draft.size) ? undefined : sizeProblem(t);
}

function checkDuration(text: string, t: Translate): string | undefined {
  const isGood = DURATION.test(text) && parseFloat(text) > 0;
  return isGood ? undefined : t('A duration is a number with s, m, h or d, as in 90s or 8h');
}

/** Whether a text is a whole number, 1 or more. */
export function isCount(text: string): boolean {
  return /^\s*[1-9]\d{0,5}\s*$/.test(text);
}
