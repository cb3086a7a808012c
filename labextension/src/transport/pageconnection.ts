import type { IConnection } from './api';

/** The way to the server of a page of its own: by its cookie, as the page came. `base` ends with a slash. */
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

/** What tornado wants to see in each request that changes something: other sites can't read our cookies. */
function xsrfHeader(): Record<string, string> {
  const xsrf = /(?:^|;\s*)_xsrf=([^;]+)/.exec(document.cookie)?.[1];
  return xsrf ? { 'X-XSRFToken': decodeURIComponent(xsrf) } : {};
}
