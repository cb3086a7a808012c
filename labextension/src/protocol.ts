/**
 * What the server extension (`monarch_nb.server`) says and takes: one snapshot per mesh, changes to it, logs, actions.
 *
 * A mesh's state is in `state.ts`, which is generated from the Python types. Times are seconds since the epoch, durations seconds, sizes
 * bytes, shares per cent. A number that isn't known is null.
 */

import type { IHost, IMeshHead, IMeshStatus, IMeshSummary, IRank, StopState } from './state';

export const PROTOCOL = 1;

export type * from './state';

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
  state: StopState;
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
