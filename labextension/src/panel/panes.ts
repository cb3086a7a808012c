import type { IDebugSource } from '../debug/model';
import type { ILogSource } from '../logs/model';
import type { IMeshService } from '../transport/service';

/** Return where the lines of a mesh come from. */
export function logSource(mesh: string, { api, stream }: IMeshService, pageSize: () => number): ILogSource {
  return {
    page: (ranks, grep, before) => api.logs(mesh, { ranks, grep, before, limit: pageSize() }),
    follow: (ranks, grep, after, onLines, onEnd) =>
      stream.watchLogs(mesh, ranks || 'all', grep, after, onLines, onEnd)
  };
}

/** Return where the stops of a mesh come from, and where lines to them go. */
export function debugSource(mesh: string, { api, stream }: IMeshService): IDebugSource {
  return {
    send: (ids, line) => api.debug(mesh, ids, line),
    watch: (onStops, onEnd) => stream.watchDebug(mesh, onStops, onEnd)
  };
}
