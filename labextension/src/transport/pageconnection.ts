import type { IConnection } from './api';

/** The connection of a standalone page to its server, with the page's cookie. `base` ends with a slash. */
export function pageConnection(base: string): IConnection {
  const root = new URL(base, location.href);
  return {
    request: (path, init) =>
      fetch(new URL(`monarch_nb/api/${path}`, root), {
        ...init,
        headers: { 'Content-Type': 'application/json', ...xsrfHeader() },
        credentials: 'same-origin',
        cache: 'no-store'
      }),
    openSocket: () => {
      const url = new URL('monarch_nb/stream', root);
      url.protocol = url.protocol.replace('http', 'ws');
      return new WebSocket(url);
    }
  };
}

/** The header that tornado requires in each request that changes state: other sites can't read the cookie. */
function xsrfHeader(): Record<string, string> {
  const xsrf = /(?:^|;\s*)_xsrf=([^;]+)/.exec(document.cookie)?.[1];
  return xsrf ? { 'X-XSRFToken': decodeURIComponent(xsrf) } : {};
}
