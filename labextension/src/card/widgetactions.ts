import type { IActions } from './card';
import { findServer } from '../transport/pageserver';
import type { PageServer } from '../transport/pageserver';
import type { ILogPage } from '../protocol';
import type { IModel } from './widget';

type Action = 'interrupt' | 'heal' | 'stop' | 'stacks' | 'lines';

interface IAnswer {
  kind: string;
  id: string;
  ok: boolean;
  text: string;
}

interface IPending {
  resolve(text: string): void;
  reject(error: Error): void;
}

const NUM_LINES = 50;
let lastId = 0;

/**
 * The actions of a widget: requested from the Jupyter server, which answers while the kernel is busy; or from
 * the kernel, where there is no such server (VS Code, Colab) or it doesn't know the mesh.
 */
export class WidgetActions implements IActions {
  private readonly _pending = new Map<string, IPending>();
  private readonly _server: PageServer | null = findServer();
  private readonly _onMessage = (content: unknown): void => this._take(content as IAnswer);

  constructor(
    private readonly _model: IModel,
    private readonly _mesh: () => string
  ) {
    _model.on('msg:custom', this._onMessage as (...args: unknown[]) => void);
  }

  interrupt(ranks = ''): Promise<string> {
    return this._do('interrupt', ranks, server =>
      server.post(`${this._address}/interrupt`, ranks ? { ranks } : {}).then(() => '')
    );
  }

  heal(): Promise<string> {
    return this._do('heal', '', server =>
      server.post<{ report: string }>(`${this._address}/heal`, {}).then(answer => answer?.report ?? '')
    );
  }

  stop(): Promise<string> {
    return this._do('stop', '', server => server.delete(this._address).then(() => ''));
  }

  stacks(ranks: string): Promise<string> {
    const query = new URLSearchParams({ ranks });
    return this._do('stacks', ranks, server =>
      server.get<{ text: string }>(`${this._address}/stacks?${query}`).then(answer => answer?.text ?? '')
    );
  }

  lastLines(rank: number): Promise<string> {
    const query = new URLSearchParams({ ranks: String(rank), limit: String(NUM_LINES) });
    return this._do('lines', String(rank), server =>
      server.get<ILogPage>(`${this._address}/logs?${query}`).then(page => linesText(page?.lines ?? []))
    );
  }

  /** Reject the pending requests: they will not be answered. */
  dispose(): void {
    this._model.off('msg:custom', this._onMessage as (...args: unknown[]) => void);
    for (const { reject } of this._pending.values()) {
      reject(new Error('The view was closed'));
    }
    this._pending.clear();
  }

  private get _address(): string {
    return `meshes/${encodeURIComponent(this._mesh())}`;
  }

  private async _do(
    action: Action,
    ranks: string,
    ask: (server: PageServer) => Promise<string | null>
  ): Promise<string> {
    if (this._server) {
      const answer = await this._server.attempt(ask);
      if (answer !== null) {
        return answer;
      }
    }
    return this._askKernel(action, ranks);
  }

  private _askKernel(action: Action, ranks: string): Promise<string> {
    // Answers go to every view of the model, on every page: the id must be unique among them.
    const id = `${++lastId}-${Math.random().toString(36).slice(2)}`;
    return new Promise((resolve, reject) => {
      this._pending.set(id, { resolve, reject });
      this._model.send({ kind: 'action', id, action, ranks });
    });
  }

  private _take(answer: IAnswer): void {
    const pending = answer?.kind === 'answer' ? this._pending.get(answer.id) : undefined;
    if (!pending) {
      return;
    }
    this._pending.delete(answer.id);
    if (answer.ok) {
      pending.resolve(answer.text);
    } else {
      pending.reject(new Error(answer.text));
    }
  }
}

/** Return lines as people read them. */
export function linesText(lines: ILogPage['lines']): string {
  return lines.map(line => line.text).join('\n');
}
