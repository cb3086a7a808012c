import type { IHost, IMeshStatus, IRank } from '../src/protocol';

/** A rank that idles, but for what is given. */
export function rank(number: number, more: Partial<IRank> = {}): IRank {
  return {
    rank: number,
    host: 0,
    pid: 1000 + number,
    state: 'idle',
    reason: '',
    doing: '',
    since: 0,
    cell: null,
    line: '',
    collective: null,
    cpu_percent: null,
    memory_bytes: null,
    gpus: [],
    gpu_memory_bytes: null,
    last_line: '',
    num_queued: 0,
    ...more
  };
}

export function host(index: number, more: Partial<IHost> = {}): IHost {
  return {
    index,
    hostname: `node-${index}`,
    state: 'up',
    pid: 10 + index,
    num_cores: 8,
    num_gpus: 0,
    cpu_percent: 12.4,
    memory_used_bytes: 4e9,
    memory_total_bytes: 16e9,
    gpus: [],
    history: { interval_s: 2, cpu_percent: [], memory_percent: [], gpu_percent: [] },
    environment: '',
    differs: '',
    ...more
  };
}

/** A mesh of idle ranks on one host. */
export function status(
  sizes: [string, number][] = [['gpus', 4]],
  more: Partial<IMeshStatus> = {}
): IMeshStatus {
  const numRanks = sizes.reduce((product, [, size]) => product * size, 1);
  return {
    name: 'dev',
    pid: 42,
    started: 0,
    sizes,
    idle_timeout_s: null,
    lease_left_s: null,
    ends_at: null,
    num_cells: 0,
    is_healing: false,
    on_failure: 'stop',
    journal: '',
    clients: [],
    versions: {},
    environment: '',
    hosts: [host(0)],
    ranks: Array.from({ length: numRanks }, (_, i) => rank(i)),
    ...more
  };
}

/** A socket whose server is the test. */
export class FakeSocket {
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  isClosed = false;
  readonly sent: { op: string; id: number; [field: string]: unknown }[] = [];

  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }

  close(): void {
    this.break();
  }

  /** The server says something. */
  say(message: object): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  /** The connection ends, from whichever side. */
  break(): void {
    if (!this.isClosed) {
      this.isClosed = true;
      this.onclose?.();
    }
  }

  ops(op: string): { op: string; id: number; [field: string]: unknown }[] {
    return this.sent.filter(message => message.op === op);
  }
}
