/**
 * A mesh's state. Generated from `monarch_nb/status/model.py` by `make labextension`: change it there.
 *
 * Times are seconds since the epoch, durations seconds, sizes bytes, shares per cent; null: it isn't known.
 */

/** A rank, as people see it. */
export type RankState =
  'starting' | 'idle' | 'busy' | 'debugging' | 'unresponsive' | 'stopping' | 'stopped' | 'lost';

/** A machine of a mesh, as the controller knows it. */
export type HostState = 'expected' | 'up' | 'leaving' | 'lost' | 'stopped';

/** A thread that has stood at a breakpoint. */
export type StopState = 'stopped' | 'running';

/** What is done when a rank of a group dies. */
export type OnFailure = 'stop' | 'heal' | 'shrink' | 'call';

/** The operation of a process group that a rank is in. */
export interface ICollective {
  name: string;
  /**
   * How many of the group's operations the rank has entered, this one included; 0: the backend doesn't count.
   */
  sequence: number;
  since: number;
  /** Of its (first) tensor. */
  shape: number[] | null;
  dtype: string;
}

/** What a rank has moved by one path of the data plane, as far as it asked for it. */
export interface ITransfers {
  /** `shm`, `cuda_ipc`, `verbs`, `tcp`, ... */
  path: string;
  /** How many transfers. */
  num: number;
  read_bytes: number;
  written_bytes: number;
  /** How long they took, one after the other. */
  seconds: number;
}

/** A process on a GPU. */
export interface IGpuProcess {
  pid: number;
  memory_bytes: number | null;
  /** null: it's none of the mesh's. */
  rank: number | null;
}

/** A GPU, as NVIDIA's driver sees it. */
export interface IGpu {
  index: number;
  name: string;
  uuid?: string;
  utilization_percent: number | null;
  memory_used_bytes: number | null;
  memory_total_bytes: number | null;
  temperature_c: number | null;
  /** Those of others, too. */
  processes: IGpuProcess[];
}

/** The last minutes of a machine, oldest first; null where there was no reading. */
export interface IHistory {
  interval_s: number;
  cpu_percent: (number | null)[];
  memory_percent: (number | null)[];
  /** The GPUs' average. */
  gpu_percent: (number | null)[];
}

/** One rank. */
export interface IRank {
  rank: number;
  /** Index of its host, which isn't its position among the mesh's hosts. */
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
  /** Indices of its host's GPUs that are its own. */
  gpus: number[];
  gpu_memory_bytes: number | null;
  /** What it has moved through the data plane, by path. */
  transfers?: ITransfers[];
  /** What it has printed last. */
  last_line: string;
  /** Messages and cells that wait for it. */
  num_queued: number;
  /** Numbers of the cells among them, the next one first. */
  cells_waiting?: number[];
}

/** A machine of a mesh. */
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
  /** After how long without a client it ends; null: it ends with its program. */
  idle_timeout_s: number | null;
  /** Who is connected: "notebook PATH (pid N)". */
  clients: string[];
  /** How many cells run or wait. */
  num_cells: number;
  /** Directory of its journal. */
  journal: string;
  /** Why the journal can't be written just now; empty if it can. */
  journal_trouble?: string;
  /** How long until it ends if nobody comes; null while a client or a cell holds it. */
  lease_left_s: number | null;
  /** Whether lost ranks are being put back just now. */
  is_healing: boolean;
  /** What is done when a rank dies. */
  on_failure: OnFailure;
  /** Of Python and packages. */
  versions: { [name: string]: string };
  /** Short hash of versions and variables; equal for equal environments. */
  environment: string;
  /** The process that it ends with, as meshes do that have been started --with-kernel. */
  owner_pid?: number | null;
  /** When an engine takes its hosts away, if that's known. */
  ends_at?: number | null;
  /** Jupyter's ids of the kernels that use it, and when each has made it the mesh that it uses. */
  kernels?: { [name: string]: number };
}

/** A mesh at one moment. */
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
  states: { [name: string]: number };
  /** Why it can't be talked to (another version, no answer); empty if all is well. */
  trouble: string;
  /** Jupyter's ids of the kernels that use it, and when each has made it the one that it uses. */
  kernels?: { [name: string]: number };
}
