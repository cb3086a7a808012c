import { PROTOCOL } from '../protocol';
import type { ClientMessage, ServerMessage } from '../protocol';
import { Listeners } from './listeners';
import type { MeshStore } from './store';
import { AllocationsWatch, DebugWatch, LogsWatch, MeshesWatch, StatusWatch } from './watches';
import type { IWatch, OnAllocations, OnLines, OnMeshes, OnStops } from './watches';

/**
 * missing: the server answered, but has no such address; mismatch: it has another version of the protocol;
 * closed: there are no watches, or the stream is disposed.
 */
export type StreamState = 'connecting' | 'open' | 'missing' | 'mismatch' | 'closed';

const FIRST_DELAY_MS = 500;
const MAX_DELAY_MS = 10_000;
/** Number of sockets closed before the server's hello after which the extension counts as missing. */
const NUM_REFUSALS = 3;
/** How long an unused socket is kept: panels and outputs are opened and closed often. */
const LINGER_MS = 2_000;
const HIDDEN_ACK_MS = 100;
/** Animation frames stop without notice when a page is hidden or a frame is off screen. */
const LATE_ACK_MS = 500;

/**
 * The WebSocket of a page, which carries all its watches.
 *
 * It's opened by the first watch, closed some time after the last, and opened again when it breaks, with
 * growing delays. A message is acknowledged once its listeners have run and the page has been painted, so
 * that a slow page is sent fewer messages instead of ever later ones.
 */
export class Stream {
  private _socket: WebSocket | null = null;
  private _state: StreamState = 'closed';
  private _serverVersion: string | null = null;
  private _isGreeted = false;
  private _wasGreeted = false;
  private _isDisposed = false;
  private _numRefusals = 0;
  private _delay = FIRST_DELAY_MS;
  private _retry: ReturnType<typeof setTimeout> | null = null;
  private _linger: ReturnType<typeof setTimeout> | null = null;
  private _lastId = 0;
  private readonly _watches = new Map<number, IWatch>();
  private readonly _meshes = new MeshesWatch();
  private readonly _feeds = new Map<string, StatusWatch>();
  private readonly _listeners = new Listeners<() => void>();

  /** @param open opens the socket; it's called for each try. */
  constructor(private readonly _open: () => WebSocket) {}

  get state(): StreamState {
    return this._state;
  }

  /** The server extension's version; null before its first hello. */
  get serverVersion(): string | null {
    return this._serverVersion;
  }

  /** Call the listener when the state changes; returns how to stop. */
  on(listener: () => void): () => void {
    return this._listeners.add(listener);
  }

  /** Watch the list of meshes. */
  watchMeshes(onMeshes: OnMeshes): () => void {
    const watch = this._meshes;
    if (watch.listeners.size === 0) {
      watch.id = this._begin(watch);
    }
    const forget = watch.add(onMeshes);
    return () => {
      if (forget() && watch.listeners.size === 0) {
        this._end(watch.id);
      }
    };
  }

  /** Watch the requests for hosts of engines; the server asks the engines while somebody watches. */
  watchAllocations(onAllocations: OnAllocations): () => void {
    const id = this._begin(new AllocationsWatch(onAllocations));
    return () => this._end(id);
  }

  /** Keep the store up to date. Watchers of one mesh share one watch. */
  watchStatus(mesh: string, store: MeshStore): () => void {
    const feed = this._feeds.get(mesh) ?? this._feed(mesh);
    const forget = feed.add(store);
    return () => {
      if (forget() && feed.stores.size === 0 && this._feeds.get(mesh) === feed) {
        this._feeds.delete(mesh);
        this._end(feed.id);
      }
    };
  }

  /**
   * Follow what ranks write, from a position on; null: from now on. Empty `ranks` and `grep` mean all. After
   * a broken connection it goes on where it was. `onEnd` is called at most once, and not for what is stopped
   * here.
   */
  watchLogs(
    mesh: string,
    ranks: string,
    grep: string,
    after: number | null,
    onLines: OnLines,
    onEnd: (reason: string) => void
  ): () => void {
    const id = this._begin(new LogsWatch({ what: 'logs', mesh, ranks, grep, after }, onLines, onEnd));
    return () => this._end(id);
  }

  /** Watch who stands in the debugger; `onEnd` is called at most once, and not for what is stopped here. */
  watchDebug(mesh: string, onStops: OnStops, onEnd: (reason: string) => void): () => void {
    const id = this._begin(new DebugWatch(mesh, onStops, onEnd));
    return () => this._end(id);
  }

  /** Close the socket for good. */
  dispose(): void {
    this._isDisposed = true;
    this._watches.clear();
    this._close();
  }

  private _feed(mesh: string): StatusWatch {
    const feed = new StatusWatch(mesh, () => this._feeds.delete(mesh));
    this._feeds.set(mesh, feed);
    feed.id = this._begin(feed);
    return feed;
  }

  private _begin(watch: IWatch): number {
    const id = ++this._lastId;
    this._watches.set(id, watch);
    if (this._isGreeted) {
      this._ask(id, watch);
    } else if (!this._socket && this._retry === null) {
      this._connect();
    }
    return id;
  }

  private _end(id: number): void {
    if (!this._watches.delete(id)) {
      return;
    }
    if (this._isGreeted) {
      this._send({ op: 'unwatch', id });
    }
    this._lingerIfIdle();
  }

  private _lingerIfIdle(): void {
    if (this._watches.size === 0 && this._linger === null) {
      this._linger = setTimeout(() => {
        this._linger = null;
        if (this._watches.size === 0) {
          this._close();
        }
      }, LINGER_MS);
    }
  }

  private _ask(id: number, watch: IWatch): void {
    this._send({ op: 'watch', id, ...watch.request() });
  }

  private _send(message: ClientMessage): void {
    this._socket?.send(JSON.stringify(message));
  }

  private _connect(): void {
    if (this._isDisposed) {
      return;
    }
    // What is missing or speaks another protocol stays so until a hello says otherwise: the state mustn't
    // flicker.
    if (this._state === 'open' || this._state === 'closed') {
      this._become('connecting');
    }
    const socket = this._open();
    this._socket = socket;
    socket.onmessage = event => {
      if (socket === this._socket) {
        this._hear(JSON.parse(String(event.data)) as ServerMessage);
      }
    };
    socket.onclose = () => {
      if (socket === this._socket) {
        this._broke();
      }
    };
  }

  private _broke(): void {
    const wasGreeted = this._isGreeted;
    this._socket = null;
    this._isGreeted = false;
    if (this._watches.size === 0) {
      this._close();
      return;
    }
    this._numRefusals = wasGreeted ? 0 : this._numRefusals + 1;
    if (this._state !== 'mismatch') {
      // A server that has answered before has the address: it's just being started again.
      const isMissing = this._numRefusals >= NUM_REFUSALS && !this._wasGreeted;
      this._become(isMissing ? 'missing' : 'connecting');
    }
    this._retry = setTimeout(() => {
      this._retry = null;
      this._connect();
    }, this._delay);
    this._delay = Math.min(2 * this._delay, MAX_DELAY_MS);
  }

  private _close(): void {
    clearTimeout(this._retry ?? undefined);
    clearTimeout(this._linger ?? undefined);
    this._retry = this._linger = null;
    const socket = this._socket;
    this._socket = null;
    this._isGreeted = false;
    this._delay = FIRST_DELAY_MS;
    socket?.close();
    this._become('closed');
  }

  private _hear(message: ServerMessage): void {
    if (message.type === 'hello') {
      this._greet(message.version, message.protocol);
      return;
    }
    const watch = this._watches.get(message.id);
    if (message.type === 'gone' || message.type === 'error') {
      this._watches.delete(message.id);
      watch?.over(message.type === 'gone' ? message.reason : message.message);
      this._lingerIfIdle();
      return;
    }
    try {
      watch?.hear(message);
    } finally {
      // Even if a listener has failed: else nothing would ever come again.
      this._acknowledge(message.id);
    }
  }

  private _greet(version: string, protocol: number): void {
    this._serverVersion = version;
    this._wasGreeted = true;
    if (protocol !== PROTOCOL) {
      this._become('mismatch');
      this._delay = MAX_DELAY_MS;
      this._socket?.close();
      return;
    }
    this._isGreeted = true;
    this._numRefusals = 0;
    this._delay = FIRST_DELAY_MS;
    for (const [id, watch] of this._watches) {
      this._ask(id, watch);
    }
    this._become('open');
  }

  private _acknowledge(id: number): void {
    const socket = this._socket;
    whenPainted(() => {
      if (socket === this._socket && this._isGreeted) {
        this._send({ op: 'taken', id });
      }
    });
  }

  private _become(state: StreamState): void {
    if (state !== this._state) {
      this._state = state;
      this._listeners.call(listener => listener());
    }
  }
}

/** Call back after the next paint; on a hidden page, which is never painted, after a while. */
function whenPainted(callback: () => void): void {
  let isDone = false;
  const once = (): void => {
    if (!isDone) {
      isDone = true;
      callback();
    }
  };
  if (document.hidden) {
    setTimeout(once, HIDDEN_ACK_MS);
    return;
  }
  const timer = setTimeout(once, LATE_ACK_MS);
  requestAnimationFrame(() => {
    clearTimeout(timer);
    once();
  });
}
