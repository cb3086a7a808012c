import { beforeEach, expect, test, vi } from 'vitest';
import type { ServerConnection } from '@jupyterlab/services';
import { Api, ApiError } from '../src/transport/api';
import { labConnection } from '../src/transport/connection';

const { makeRequest } = vi.hoisted(() => ({ makeRequest: vi.fn() }));
vi.mock('@jupyterlab/services', () => ({ ServerConnection: { makeRequest } }));
vi.mock('@jupyterlab/coreutils', () => ({
  URLExt: { join: (...parts: string[]) => parts.map(p => p.replace(/\/$/, '')).join('/') }
}));

const sockets: string[] = [];
const settings = {
  baseUrl: 'http://server/base/',
  wsUrl: 'ws://server/base/',
  token: 'a b',
  appendToken: true,
  WebSocket: function (url: string) {
    sockets.push(url);
  }
} as unknown as ServerConnection.ISettings;
const api = new Api(labConnection(settings));

const answer = (body: unknown, init: ResponseInit = {}) =>
  makeRequest.mockResolvedValue(new Response(body === null ? null : JSON.stringify(body), init));

beforeEach(() => {
  makeRequest.mockReset();
});

test('an error is the sentence of the server, with its status', async () => {
  answer({ message: "mesh 'x' runs already" }, { status: 409 });
  const error = await api.stop('x').catch((e: unknown) => e);
  expect(error).toBeInstanceOf(ApiError);
  expect(error).toMatchObject({ status: 409, message: "mesh 'x' runs already" });
});

test('a page of HTML with 404 means that the extension is missing', async () => {
  makeRequest.mockResolvedValue(new Response('<html>not found</html>', { status: 404 }));
  await expect(api.version()).rejects.toMatchObject({
    status: 404,
    message: expect.stringContaining('monarch_nb is not enabled')
  });
});

test('an error without a sentence still says something', async () => {
  makeRequest.mockResolvedValue(new Response('{}', { status: 504, statusText: 'Gateway Timeout' }));
  await expect(api.heal('x')).rejects.toThrow('The Jupyter server answered 504 Gateway Timeout');
});

test('a server that does not answer has status 0', async () => {
  makeRequest.mockRejectedValue(new TypeError('Failed to fetch'));
  await expect(api.meshes()).rejects.toMatchObject({
    status: 0,
    message: expect.stringContaining('Failed to fetch')
  });
});

test('a query leaves out what is not given', async () => {
  answer({ lines: [], before: null, after: 0 });
  await api.logs('my mesh', { ranks: '', grep: 'a&b', before: null, limit: 500 });
  expect(makeRequest.mock.calls[0][0]).toBe(
    'http://server/base/monarch_nb/api/meshes/my%20mesh/logs?grep=a%26b&limit=500'
  );
});

test('actions send what the protocol says', async () => {
  answer({ report: 'rank 3 is back' });
  expect(await api.heal('demo')).toBe('rank 3 is back');
  expect(makeRequest.mock.calls[0].slice(0, 2)).toEqual([
    'http://server/base/monarch_nb/api/meshes/demo/heal',
    { method: 'POST', body: '{}' }
  ]);
  answer({});
  await api.interrupt('demo', '0-3');
  expect(makeRequest.mock.calls[1][1]).toEqual({ method: 'POST', body: '{"ranks":"0-3"}' });
  answer(null, { status: 204 });
  await api.stop('demo');
  expect(makeRequest.mock.calls[2][1]).toEqual({ method: 'DELETE' });
  answer({ answers: [], stops: [] });
  await api.debug('demo', null, 'p x');
  expect(makeRequest.mock.calls[3].slice(0, 2)).toEqual([
    'http://server/base/monarch_nb/api/meshes/demo/debug',
    { method: 'POST', body: '{"ids":null,"line":"p x"}' }
  ]);
});

test('the socket carries the token only if it has to', () => {
  labConnection(settings).openSocket();
  labConnection({ ...settings, appendToken: false }).openSocket();
  expect(sockets).toEqual([
    'ws://server/base/monarch_nb/stream?token=a%20b',
    'ws://server/base/monarch_nb/stream'
  ]);
});
