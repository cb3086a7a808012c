/**
 * The protocol of the server extension (`monarch_nb._server`): one snapshot per mesh, changes, logs, actions.
 *
 * What both say is in `state.ts`, which is generated from the Python types; here is where it is said.
 */

export const PROTOCOL = 1;

export type * from './state';

// --- WebSocket `monarch_nb/stream`: ServerMessage and ClientMessage. Every message with an `id` is to be
// answered with {op: 'taken', id}: until then the server holds further changes back and puts them together,
// so a slow reader gets fewer messages, never late ones.

// --- REST, below `monarch_nb/api`. Errors are {message: one sentence} with status 400, 403, 404, 409 or 504.
//
//   GET    version                                   {version, protocol}
//   GET    meshes                                    IMeshSummary[]
//   POST   meshes                    IStartRequest   IMeshSummary; 201 once the ranks are up. For hosts of an
//                                                    engine IAllocation; 202 once the engine has the request
//   GET    clusters                                  ICluster[]
//   GET    allocations                               IAllocation[], as the engines say now
//   DELETE allocations/NAME                          204: its hosts are given back
//   POST   allocations/NAME/wait     {}              {}; 202: its ranks are started once its hosts are there
//   GET    meshes/NAME                               IMeshStatus
//   DELETE meshes/NAME                               204
//   POST   meshes/NAME/interrupt     {ranks?}        {}; a rank set as in 0-3,7; empty: all, as everywhere
//   POST   meshes/NAME/heal          {replay?}       {report: string}
//   POST   meshes/NAME/resize        {sizes}         {report: string}
//   GET    meshes/NAME/attach                        {code: string}: what to put into a cell
//   GET    meshes/NAME/logs?ranks=&grep=&before=&limit=   ILogPage: the last, or the one before a position
//   GET    meshes/NAME/stacks?ranks=                 {text: string}: Python stacks, equal ones once
//   GET    meshes/NAME/journal?limit=                IEntry[]
//   GET    meshes/NAME/debug                         {stops: IStop[]}
//   POST   meshes/NAME/debug         {ids, line}     IDebugAnswers; ids null: all.
//                                                  `!!vars` is answered with IVariables as JSON
