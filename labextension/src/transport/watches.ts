import type { ClientMessage, ILogLine, IMeshSummary, IStop, ServerMessage } from '../protocol';
import { Rollcall } from './rollcall';
import type { MeshStore } from './store';

export type OnMeshes = (meshes: IMeshSummary[]) => void;
export type OnLines = (lines: ILogLine[], after: number) => void;
export type OnStops = (stops: IStop[]) => void;
/** What is asked for, without the number that the stream gives it. */
export type Request<T = Extract<ClientMessage, { op: 'watch' }>> = T extends unknown
  ? Omit<T, 'op' | 'id'>
  : never;

/** One thing that is watched. It lives across connections: `request` says how to ask for it (again). */
export interface IWatch {
  request(): Request;
  /** Take a message in. */
  hear(message: ServerMessage): void;
  /** The server has ended the watch. */
  over(reason: string): void;
}

/** The list of meshes, for any number of listeners. */
export class MeshesWatch implements IWatch {
  id = 0;
  readonly listeners = new Rollcall<OnMeshes>();
  private _last: IMeshSummary[] | null = null;

  /**
   * Tell the listener; returns how to forget it, which says whether it was there. A late comer is told the
   * last list.
   */
  add(onMeshes: OnMeshes): () => boolean {
    const last = this.listeners.size > 0 ? this._last : null;
    this._last = last;
    const forget = this.listeners.add(onMeshes);
    if (last) {
      onMeshes(last);
    }
    return forget;
  }

  request(): Request {
    return { what: 'meshes' };
  }

  hear(message: ServerMessage): void {
    if (message.type === 'meshes') {
      this._last = message.meshes;
      this.listeners.call(listener => listener(message.meshes));
    }
  }

  over(): void {
    // A list of meshes doesn't end: no mesh is an empty list.
  }
}

/** One mesh's state, for any number of stores. */
export class StatusWatch implements IWatch {
  id = 0;
  readonly stores = new Rollcall<MeshStore>();

  constructor(
    private readonly _mesh: string,
    private readonly _onOver: () => void
  ) {}

  /**
   * Returns how to forget the store, which says whether it was there. A late comer is given what others have.
   */
  add(store: MeshStore): () => boolean {
    const status = this.stores.first?.status;
    const forget = this.stores.add(store);
    if (status) {
      store.apply({ type: 'status', status });
    }
    return forget;
  }

  request(): Request {
    return { what: 'status', mesh: this._mesh };
  }

  hear(message: ServerMessage): void {
    if (message.type === 'status' || message.type === 'delta') {
      this.stores.call(store => store.apply(message));
    }
  }

  over(reason: string): void {
    this._onOver();
    this.stores.call(store => store.end(reason));
  }
}

/** What ranks write. */
export class LogsWatch implements IWatch {
  constructor(
    private _request: Extract<Request, { what: 'logs' }>,
    private readonly _onLines: OnLines,
    private readonly _onEnd: (reason: string) => void
  ) {}

  request(): Request {
    return this._request;
  }

  hear(message: ServerMessage): void {
    if (message.type === 'log') {
      this._request = { ...this._request, after: message.after };
      this._onLines(message.lines, message.after);
    }
  }

  over(reason: string): void {
    this._onEnd(reason);
  }
}

/** Who stands in the debugger. */
export class DebugWatch implements IWatch {
  constructor(
    private readonly _mesh: string,
    private readonly _onStops: OnStops,
    private readonly _onEnd: (reason: string) => void
  ) {}

  request(): Request {
    return { what: 'debug', mesh: this._mesh };
  }

  hear(message: ServerMessage): void {
    if (message.type === 'debug') {
      this._onStops(message.stops);
    }
  }

  over(reason: string): void {
    this._onEnd(reason);
  }
}
