/**
 * What the server extension (`monarch_nb.server`) says and takes: one snapshot per mesh, changes to it, logs, actions.
 *
 * The types mirror the dataclasses of `monarch_nb/status.py`, which are the one description of a mesh's state. Times are seconds since
 * the epoch, durations seconds, sizes bytes, shares per cent. A number that isn't known is null.
 */

export const PROTOCOL = 1;

export type RankState =
  'starting' | 'idle' | 'busy' | 'debugging' | 'unresponsive' | 'stopping' | 'stopped' | 'lost';
export type HostState = 'expected' | 'up' | 'leaving' | 'lost' | 'stopped';

/** The operation that a rank's process group is in. */
export interface ICollective {
  name: string;
  /** How many of the group's operations have been entered, this one included; 0: the backend doesn't count. */
  sequence: number;
  since: number;
  /** Of its (first) tensor. */
  shape: number[] | null;
  dtype: string;
}

export interface IRank {
  rank: number;
  /** Index into the mesh's hosts' `index`, not a position. */
  host: number;
  pid: number;
  state: RankState;
  /** Why it's lost or unresponsive, in words; empty else. */
  reason: string;
  /** What it's busy with: "cell #17", "Trainer.step"; empty if idle. */
  doing: string;
  /** Since when it's in this state. */
  since: number;
  /** Number of the cell that runs, in the journal. */
  cell: number | null;
  /** Where it stands: "In [3], line 4: loss.backward()"; empty if not known. */
  line: string;
  collective: ICollective | null;
  cpu_percent: number | null;
  /** Proportional set size: memory that it shares is divided by how many share it. */
  memory_bytes: number | null;
  /** Indices into its host's `gpus`. */
  gpus: number[];
  gpu_memory_bytes: number | null;
  last_line: string;
  /** Messages and cells that wait for it. */
  num_queued: number;
  /** Numbers of the cells among them, the next one first; older snapshots lack it. */
  cells_waiting?: number[];
  /** What it has moved through the data plane, by path; older snapshots lack it. */
  transfers?: ITransfers[];
}

export interface ITransfers {
  path: string;
  num: number;
  read_bytes: number;
  written_bytes: number;
  seconds: number;
}

export interface IGpu {
  index: number;
  name: string;
  utilization_percent: number | null;
  memory_used_bytes: number | null;
  memory_total_bytes: number | null;
  temperature_c: number | null;
  /** Processes on it, those of others too; `rank` is null for those. */
  processes: { pid: number; memory_bytes: number | null; rank: number | null }[];
}

/** The last minutes of a host, oldest first; null where there was no reading. */
export interface IHistory {
  interval_s: number;
  cpu_percent: (number | null)[];
  memory_percent: (number | null)[];
  gpu_percent: (number | null)[];
}

export interface IHost {
  index: number;
  hostname: string;
  state: HostState;
  pid: number;
  num_cores: number;
  num_gpus: number;
  cpu_percent: number | null;
  memory_used_bytes: number | null;
  memory_total_bytes: number | null;
  gpus: IGpu[];
  history: IHistory;
}

/** A mesh without its hosts and ranks. */
export interface IMeshHead {
  name: string;
  pid: number;
  started: number;
  /** Named dimensions, outermost first; ranks are in row-major order. */
  sizes: [string, number][];
  idle_timeout_s: number | null;
  /** Seconds until it ends if nobody comes; null while a client or a cell holds it. */
  lease_left_s: number | null;
  num_cells: number;
  /** Whether lost ranks are being put back just now. */
  is_healing: boolean;
  /** stop, heal, shrink or call: what is done when a rank dies. */
  on_failure: string;
  journal: string;
  clients: string[];
  versions: { [name: string]: string };
  environment: string;
}

export interface IMeshStatus extends IMeshHead {
  hosts: IHost[];
  ranks: IRank[];
}

/** One row of the list of meshes. */
export interface IMeshSummary {
  name: string;
  pid: number;
  sizes: [string, number][];
  /** How many ranks are in each state. */
  states: { [state: string]: number };
  /** Why it can't be talked to (another version, no answer); empty if all is well. */
  trouble: string;
  /** Jupyter's ids of the kernels that use it, and when each has made it the one that it uses; missing in what an older server says. */
  kernels?: { [kernel: string]: number };
}

/** A line that a rank has written. */
export interface ILogLine {
  rank: number;
  stream: 'stdout' | 'stderr';
  when: number;
  text: string;
}

/** A page of a rank's output, oldest line first. */
export interface ILogPage {
  lines: ILogLine[];
  /**
   * Where the page before this one ends; null if there is none. A search looks through so much at a time: a page may be empty and still have
   * a page before it.
   */
  before: number | null;
  /** Where this page ends, a position of the same kind. To follow from here, watch logs from this position. */
  after: number;
}

/** A thread of a rank that stands in the debugger. */
export interface IStop {
  id: number;
  rank: number;
  /** "main", or the actor's name. */
  thread: string;
  /** "cell #3", "Trainer.step". */
  what: string;
  /** "In [3]", or a path. */
  file: string;
  line: number;
  function: string;
  /** The source line. */
  text: string;
  /** running: a step hasn't come back yet. */
  state: 'stopped' | 'running';
  /** breakpoint, step, exception, post-mortem. */
  reason: string;
  /** What was raised, after an error. */
  error?: string;
  /** Lines around it, with their numbers. */
  source?: [number, string][];
  /** interact: lines are Python. */
  mode?: 'pdb' | 'interact';
}

/** What stops have answered to a line: equal answers once. */
export interface IDebugAnswers {
  answers: { ids: number[]; ranks: string; text: string }[];
  /** Stops that haven't come back in time: they run on. */
  left?: number[];
  stops: IStop[];
}

// --- WebSocket `monarch_nb/stream`. Every message with an `id` is to be answered with {op: 'taken', id}: until then the server holds
// further changes back and puts them together, so a slow reader gets fewer messages, never late ones.

export type ClientMessage =
  | { op: 'watch'; id: number; what: 'meshes' }
  | { op: 'watch'; id: number; what: 'status'; mesh: string }
  | { op: 'watch'; id: number; what: 'debug'; mesh: string }
  | { op: 'watch'; id: number; what: 'logs'; mesh: string; ranks: string; grep: string; after: number | null }
  | { op: 'unwatch'; id: number }
  | { op: 'taken'; id: number };

export type ServerMessage =
  | { type: 'hello'; version: string; protocol: number }
  | { type: 'meshes'; id: number; meshes: IMeshSummary[] }
  | { type: 'status'; id: number; status: IMeshStatus }
  | { type: 'delta'; id: number; mesh: Partial<IMeshHead>; hosts: IHost[]; ranks: IRank[] }
  /** All who stand in the debugger, whenever that changes. */
  | { type: 'debug'; id: number; stops: IStop[] }
  | { type: 'log'; id: number; lines: ILogLine[]; after: number }
  /** What was watched is no more: the mesh has ended. The watch is over. */
  | { type: 'gone'; id: number; reason: string }
  /** The watch couldn't begin; it's over. */
  | { type: 'error'; id: number; message: string };

// --- REST, below `monarch_nb/api`. Errors are {message: one sentence} with status 400, 403, 404, 409 or 504.
//
//   GET    version                                   {version, protocol}
//   GET    meshes                                    IMeshSummary[]
//   POST   meshes                    IStartRequest   IMeshSummary; 201 once the ranks are up
//   GET    meshes/NAME                               IMeshStatus
//   DELETE meshes/NAME                               204
//   POST   meshes/NAME/interrupt     {ranks?}        {}; ranks are a rank set as in 0-3,7; empty: all, as everywhere
//   POST   meshes/NAME/heal          {replay?}       {report: string}
//   POST   meshes/NAME/resize        {sizes}         {report: string}
//   GET    meshes/NAME/attach                        {code: string}: what to put into a cell
//   GET    meshes/NAME/logs?ranks=&grep=&before=&limit=   ILogPage: the last page, or the one before a position
//   GET    meshes/NAME/stacks?ranks=                 {text: string}: Python stacks, equal ones once
//   GET    meshes/NAME/journal?limit=                IEntry[]
//   GET    meshes/NAME/debug                         {stops: IStop[]}
//   POST   meshes/NAME/debug         {ids, line}     IDebugAnswers; ids null: all. `!!vars` is answered with IVariables as JSON

export interface IStartRequest {
  name: string;
  /** Sizes of the named dimensions on each host: [["gpus", 4]]. Empty: one rank per GPU, or per core. */
  dims: [string, number][];
  /** How many hosts; 0: this machine itself. */
  num_hosts: number;
  job: 'local' | 'process';
  /** As in "8h"; the mesh ends after that long without a client. */
  idle_timeout: string;
  /** Empty: none; auto: what fits the ranks' devices. */
  process_group: '' | 'auto' | 'nccl' | 'gloo';
}

export interface IEntry {
  n: number;
  kind: string;
  who: string;
  when: number;
  status?: string;
  ranks?: string;
  source?: string;
}
