import type { IAllocation, ClientMessage, ILogLine, IMeshSummary, IStop, ServerMessage } from '../protocol';
import { Listeners } from './listeners';
import type { MeshStore } from './store';

export type OnAllocations = (allocations: IAllocation[]) => void;
export type OnMeshes = (meshes: IMeshSummary[]) => void;
export type OnLines = (lines: ILogLine[], after: number) => void;
export type OnStops = (stops: IStop[]) => void;
/** A watch request, without the number that the stream assigns. */
export type Request<T = Extract<ClientMessage, { op: 'watch' }>> = T extends unknown
  ? Omit<T, 'op' | 'id'>
  : never;

/** A watch. It survives reconnections: `request` returns the request to send (again). */
export interface IWatch {
  request(): Request;
  /** Handle a message. */
  hear(message: ServerMessage): void;
  /** The server has ended the watch. */
  over(reason: string): void;
}

/** The list of meshes, for any number of listeners. */
export class MeshesWatch implements IWatch {
  id = 0;
  readonly listeners = new Listeners<OnMeshes>();
  private _last: IMeshSummary[] | null = null;

  /**
   * Add a listener; returns a function that removes it, and returns whether it was there. A late listener
   * gets the last list.
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
    // A watch on the list never ends: without meshes the list is empty.
  }
}

/** The requests for hosts of engines. */
export class AllocationsWatch implements IWatch {
  constructor(private readonly _onAllocations: OnAllocations) {}

  request(): Request {
    return { what: 'allocations' };
  }

  hear(message: ServerMessage): void {
    if (message.type === 'allocations') {
      this._onAllocations(message.allocations);
    }
  }

  over(): void {
    // It ends only where the server knows no such list.
  }
}

/** One mesh's state, for any number of stores. */
export class StatusWatch implements IWatch {
  id = 0;
  readonly stores = new Listeners<MeshStore>();

  constructor(
    private readonly _mesh: string,
    private readonly _onOver: () => void
  ) {}

  /**
   * Add a store; returns a function that removes it, and returns whether it was there. A late store gets
   * the present state.
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

/** The output of ranks. */
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

/** The threads stopped in the debugger. */
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
