import type { Feed } from '../src/panel/model';
import type { IAllocation, IHost, IMeshStatus, IMeshSummary, IRank } from '../src/protocol';
import type { MeshStore } from '../src/transport/store';

export { rank } from './fakes';

export function host(changes: Partial<IHost> = {}): IHost {
  return {
    index: 0,
    hostname: 'node-a',
    state: 'up',
    pid: 1,
    num_cores: 8,
    num_gpus: 0,
    machine: 'a',
    cpu_percent: 25,
    memory_used_bytes: 4e9,
    memory_total_bytes: 16e9,
    gpus: [],
    history: { interval_s: 2, cpu_percent: [10, 25], memory_percent: [25, 25], gpu_percent: [] },
    environment: '',
    differs: '',
    ...changes
  };
}

export function status(ranks: IRank[], changes: Partial<IMeshStatus> = {}): IMeshStatus {
  return {
    name: 'demo',
    pid: 1,
    started: 0,
    sizes: [['gpus', ranks.length]],
    idle_timeout_s: 28800,
    lease_left_s: null,
    ends_at: null,
    num_cells: 0,
    is_healing: false,
    on_failure: 'stop',
    journal: '',
    clients: [],
    versions: {},
    environment: '',
    hosts: [host()],
    ranks,
    ...changes
  };
}

export function summary(states: IMeshSummary['states'], changes: Partial<IMeshSummary> = {}): IMeshSummary {
  const count = Object.values(states).reduce((a, b) => a + b, 0);
  return { name: 'demo', pid: 1, sizes: [['gpus', count]], states, trouble: '', ...changes };
}

/** A request that waits in a queue, but for what is given. */
export function allocation(changes: Partial<IAllocation> = {}): IAllocation {
  return {
    name: 'later',
    job: 'slurm job 7 on lab',
    hosts: '3',
    num_hosts: 0,
    state: 'queued',
    reason: 'Resources',
    trouble: '',
    submitted_at: 1000,
    starts_at: null,
    ends_at: null,
    is_up: false,
    is_waited_for: true,
    ...changes
  };
}

/** A stream that says what a test has it say, and knows who watches. */
export class FakeFeed implements Feed {
  state: Feed['state'] = 'open';
  serverVersion: string | null = '0.1.0';
  readonly stores = new Map<string, MeshStore>();
  private _onMeshes: ((meshes: IMeshSummary[]) => void) | null = null;
  private _onAllocations: ((rows: IAllocation[]) => void) | null = null;
  private readonly _listeners = new Set<() => void>();

  get isWatched(): boolean {
    return this._onMeshes !== null;
  }

  watchMeshes(onMeshes: (meshes: IMeshSummary[]) => void): () => void {
    this._onMeshes = onMeshes;
    return () => {
      this._onMeshes = null;
    };
  }

  watchAllocations(onAllocations: (rows: IAllocation[]) => void): () => void {
    this._onAllocations = onAllocations;
    return () => {
      this._onAllocations = null;
    };
  }

  watchStatus(mesh: string, store: MeshStore): () => void {
    this.stores.set(mesh, store);
    return () => this.stores.delete(mesh);
  }

  on(listener: () => void): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  say(...meshes: IMeshSummary[]): void {
    this._onMeshes?.(meshes);
  }

  get areAllocationsWatched(): boolean {
    return this._onAllocations !== null;
  }

  list(...rows: IAllocation[]): void {
    this._onAllocations?.(rows);
  }

  become(state: Feed['state']): void {
    this.state = state;
    this._listeners.forEach(listener => listener());
  }
}
