import { ApiError, messageOf } from '../errors';
import type {
  IAllocation,
  ICluster,
  IDebugAnswers,
  IEntry,
  ILogPage,
  IMeshSummary,
  IStartRequest
} from '../protocol';

export { ApiError } from '../errors';

/** The selected part of a mesh's output: empty ranks or grep select everything. */
export interface ILogQuery {
  ranks?: string;
  grep?: string;
  before?: number | null;
  limit?: number;
}

/** The connection of a page to its server. */
export interface IConnection {
  /** Send a request; rejects if there is no answer. `path` follows `monarch_nb/api/`. */
  request(path: string, init: RequestInit): Promise<Response>;
  /** Open the socket of the server extension, whose first message is a hello. */
  openSocket(): WebSocket;
}

/** The actions of the server extension, one method per address. Every method rejects with an `ApiError`. */
export class Api {
  constructor(private readonly _connection: Pick<IConnection, 'request'>) {}

  version(): Promise<{ version: string; protocol: number }> {
    return this._get('version');
  }

  meshes(): Promise<IMeshSummary[]> {
    return this._get('meshes');
  }

  /** Resolves once the ranks are up; for hosts of an engine, once the engine has the request. */
  start(request: IStartRequest): Promise<IMeshSummary | IAllocation> {
    return this._post('meshes', request);
  }

  async stop(mesh: string): Promise<void> {
    await this._send(address(mesh), { method: 'DELETE' });
  }

  /** Returns where hosts can be asked for. */
  clusters(): Promise<ICluster[]> {
    return this._get('clusters');
  }

  /** Returns the requests for hosts of engines. */
  allocations(): Promise<IAllocation[]> {
    return this._get('allocations');
  }

  /** Give back the hosts of a mesh, whether it waits for them or runs. */
  async cancel(mesh: string): Promise<void> {
    await this._send(`allocations/${encodeURIComponent(mesh)}`, { method: 'DELETE' });
  }

  /** Have the server wait for the hosts of a mesh, and start its ranks then. */
  async wait(mesh: string): Promise<void> {
    await this._post(`allocations/${encodeURIComponent(mesh)}/wait`, {});
  }

  async interrupt(mesh: string, ranks?: string): Promise<void> {
    await this._post(address(mesh, 'interrupt'), ranks ? { ranks } : {});
  }

  /** Returns a report for people. */
  async heal(mesh: string): Promise<string> {
    return (await this._post<{ report: string }>(address(mesh, 'heal'), {})).report;
  }

  /** Returns a report for people. */
  async resize(mesh: string, sizes: [string, number][]): Promise<string> {
    return (await this._post<{ report: string }>(address(mesh, 'resize'), { sizes })).report;
  }

  /** Returns the source of a notebook cell that attaches to the mesh. */
  async attachCode(mesh: string): Promise<string> {
    return (await this._get<{ code: string }>(address(mesh, 'attach'))).code;
  }

  /** Returns the last page, or the one before a position. */
  logs(mesh: string, query: ILogQuery): Promise<ILogPage> {
    return this._get(address(mesh, 'logs'), { ...query });
  }

  async stacks(mesh: string, ranks: string): Promise<string> {
    return (await this._get<{ text: string }>(address(mesh, 'stacks'), { ranks })).text;
  }

  journal(mesh: string, limit: number): Promise<IEntry[]> {
    return this._get(address(mesh, 'journal'), { limit });
  }

  /** Send a debugger line to stops; null: to all. */
  debug(mesh: string, ids: number[] | null, line: string): Promise<IDebugAnswers> {
    return this._post(address(mesh, 'debug'), { ids, line });
  }

  private async _get<T>(path: string, query: Query = {}): Promise<T> {
    return (await this._send(path + queryText(query), { method: 'GET' })).json();
  }

  private async _post<T>(path: string, body: unknown): Promise<T> {
    const response = await this._send(path, { method: 'POST', body: JSON.stringify(body) });
    return response.json();
  }

  private async _send(path: string, init: RequestInit): Promise<Response> {
    let response: Response;
    try {
      response = await this._connection.request(path, init);
    } catch (error) {
      throw new ApiError(0, `The Jupyter server does not answer: ${messageOf(error)}`);
    }
    if (!response.ok) {
      throw new ApiError(response.status, await sentence(response));
    }
    return response;
  }
}

type Query = Record<string, string | number | null | undefined>;

function address(mesh: string, action = ''): string {
  return `meshes/${encodeURIComponent(mesh)}${action && '/'}${action}`;
}

function queryText(query: Query): string {
  const given = Object.entries(query).filter(
    ([, value]) => value !== null && value !== undefined && value !== ''
  );
  return given.length ? `?${new URLSearchParams(given.map(([k, v]) => [k, String(v)]))}` : '';
}

/**
 * An unknown address is answered with a page of HTML, not with JSON: then the extension is missing.
 */
async function sentence(response: Response): Promise<string> {
  const text = await response.text().catch(() => '');
  try {
    const message = (JSON.parse(text) as { message?: unknown }).message;
    if (typeof message === 'string' && message) {
      return message;
    }
  } catch {
    if (response.status === 404) {
      return 'The server extension monarch_nb is not enabled on this Jupyter server';
    }
  }
  return `The Jupyter server answered ${response.status} ${response.statusText}`.trim();
}
