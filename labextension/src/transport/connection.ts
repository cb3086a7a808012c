import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { IConnection } from './api';

/** The way to the server that JupyterLab itself takes. */
export function labConnection(settings: ServerConnection.ISettings): IConnection {
  return {
    request: (path, init) =>
      ServerConnection.makeRequest(URLExt.join(settings.baseUrl, 'monarch_nb', 'api', path), init, settings),
    openSocket: () => {
      const token =
        settings.appendToken && settings.token ? `?token=${encodeURIComponent(settings.token)}` : '';
      return new settings.WebSocket(URLExt.join(settings.wsUrl, 'monarch_nb', 'stream') + token);
    }
  };
}
