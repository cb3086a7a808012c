/** The server refused; the message is its own sentence. */
class Refusal extends Error {}

/** There's nobody to ask: no answer, or this address or mesh isn't known. */
class Absence extends Error {}

/**
 * The Jupyter server that this page came from, for code that lives outside JupyterLab's modules.
 *
 * Methods reject with an `Absence` if somebody else should be asked, and `attempt` makes null of that.
 */
export class PageServer {
  constructor(
    private readonly _base: string,
    private readonly _token: string
  ) {}

  /** Ask; null if the server can't be asked about this. Rejects with what it refused. */
  async attempt<T>(ask: (server: PageServer) => Promise<T>): Promise<T | null> {
    try {
      return await ask(this);
    } catch (error) {
      if (error instanceof Absence) {
        return null;
      }
      throw error;
    }
  }

  get<T>(path: string): Promise<T | null> {
    return this._request<T>('GET', path);
  }

  post<T>(path: string, body: unknown): Promise<T | null> {
    return this._request<T>('POST', path, JSON.stringify(body));
  }

  delete(path: string): Promise<unknown> {
    return this._request('DELETE', path);
  }

  private async _request<T>(method: string, path: string, body?: string): Promise<T | null> {
    let response: Response;
    try {
      response = await fetch(`${this._base}monarch_nb/api/${path}`, {
        method,
        body,
        headers: this._headers(),
        credentials: 'same-origin',
        cache: 'no-store'
      });
    } catch {
      throw new Absence();
    }
    if (response.status === 404) {
      throw new Absence();
    }
    const answer: unknown = await response.json().catch(() => null);
    if (!response.ok) {
      const message = (answer as { message?: string } | null)?.message;
      throw new Refusal(
        message || `The Jupyter server answered ${response.status} ${response.statusText}`.trim()
      );
    }
    return answer as T | null;
  }

  private _headers(): Record<string, string> {
    const headers: Record<string, string> = { 'Content-Type': 'application/json' };
    const xsrf = /(?:^|;\s*)_xsrf=([^;]+)/.exec(document.cookie)?.[1];
    if (xsrf) {
      headers['X-XSRFToken'] = decodeURIComponent(xsrf);
    }
    if (this._token) {
      headers.Authorization = `token ${this._token}`;
    }
    return headers;
  }
}

/** Find this page's Jupyter server by the configuration that JupyterLab and Notebook put into their pages. */
export function findServer(): PageServer | null {
  const text = document.getElementById('jupyter-config-data')?.textContent;
  if (!text) {
    return null;
  }
  try {
    const { baseUrl, token } = JSON.parse(text) as { baseUrl?: string; token?: string };
    const base = new URL(baseUrl ?? '/', location.href);
    // The token goes to where the page came from, and nowhere else.
    return base.origin === location.origin
      ? new PageServer(base.href.replace(/\/*$/, '/'), token ?? '')
      : null;
  } catch {
    return null;
  }
}
