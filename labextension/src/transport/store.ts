import type { IHost, IMeshStatus, IRank, ServerMessage } from '../protocol';

type Told<T extends ServerMessage['type']> = Omit<Extract<ServerMessage, { type: T }>, 'id'>;

/** The messages of a store: the whole state, or a change. */
export type StatusMessage = Told<'status'> | Told<'delta'>;

type Listener = (changed: ReadonlySet<number> | null) => void;

const NOTHING: ReadonlySet<number> = new Set();

/**
 * One mesh's state: a snapshot, kept up to date by changes.
 *
 * Hosts and ranks are replaced, never changed, so that their identity shows whether they are the same.
 */
export class MeshStore {
  private _status: IMeshStatus | null = null;
  private _ended: string | null = null;
  private readonly _positions = new Map<number, number>();
  private readonly _listeners = new Set<Listener>();

  /** The last state; null before the first message. Don't change it. */
  get status(): IMeshStatus | null {
    return this._status;
  }

  /** Why the updates have ended; null while the mesh lives. */
  get ended(): string | null {
    return this._ended;
  }

  /** Return the last state of a rank. */
  rank(rank: number): IRank | undefined {
    const position = this._positions.get(rank);
    return position === undefined ? undefined : this._status?.ranks[position];
  }

  /** Return a host by its index. */
  host(index: number): IHost | undefined {
    return this._status?.hosts.find(host => host.index === index);
  }

  /** Apply a message; returns the ranks that it changed, null for all. */
  apply(message: StatusMessage): ReadonlySet<number> | null {
    const changed = message.type === 'status' ? this._replace(message.status) : this._merge(message);
    this._notify(changed);
    return changed;
  }

  /** Call the listener after each change; returns a function that stops that. The end changes no rank. */
  on(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  /** Mark the mesh as ended: the reason is shown, the last state stays. Only the first reason counts. */
  end(reason: string): void {
    if (this._ended === null) {
      this._ended = reason;
      this._notify(NOTHING);
    }
  }

  private _replace(status: IMeshStatus): null {
    // Copied, because stores that share a feed are given the same object, and each merges changes into its
    // own.
    this._status = { ...status, hosts: [...status.hosts], ranks: [...status.ranks] };
    this._index(this._status);
    return null;
  }

  private _merge(delta: Told<'delta'>): ReadonlySet<number> | null {
    const status = this._status;
    if (!status) {
      return NOTHING;
    }
    Object.assign(status, delta.mesh);
    for (const host of delta.hosts) {
      put(status.hosts, host, known => known.index === host.index);
    }
    for (const rank of delta.ranks) {
      const position = this._positions.get(rank.rank) ?? status.ranks.length;
      status.ranks[position] = rank;
      this._positions.set(rank.rank, position);
    }
    if (!delta.mesh.sizes) {
      return new Set(delta.ranks.map(rank => rank.rank));
    }
    // The shape is another one: ranks beyond it no longer exist.
    const numRanks = status.sizes.reduce((product, [, size]) => product * size, 1);
    status.ranks = status.ranks.filter(rank => rank.rank < numRanks);
    this._index(status);
    return null;
  }

  private _index(status: IMeshStatus): void {
    status.ranks.sort((a, b) => a.rank - b.rank);
    this._positions.clear();
    status.ranks.forEach((rank, position) => this._positions.set(rank.rank, position));
  }

  private _notify(changed: ReadonlySet<number> | null): void {
    for (const listener of [...this._listeners]) {
      listener(changed);
    }
  }
}

/** Replace the item that is the same by a new version, or append it. */
function put<T>(items: T[], item: T, isSame: (known: T) => boolean): void {
  const position = items.findIndex(isSame);
  items[position < 0 ? items.length : position] = item;
}
