import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { PROTOCOL } from '../src/protocol';
import { MeshStore } from '../src/transport/store';
import { Stream } from '../src/transport/stream';
import { FakeSocket, rank, status } from './fakes';

let sockets: FakeSocket[];
let stream: Stream;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = [];
  stream = new Stream(() => {
    const socket = new FakeSocket();
    sockets.push(socket);
    return socket as unknown as WebSocket;
  });
});

afterEach(() => {
  stream.dispose();
  vi.useRealTimers();
  vi.restoreAllMocks();
});

function last(): FakeSocket {
  return sockets[sockets.length - 1];
}

function greet(protocol = PROTOCOL): FakeSocket {
  last().say({ type: 'hello', version: '1.2.3', protocol });
  return last();
}

/** The page is painted. */
function paint(): void {
  vi.advanceTimersToNextFrame();
}

describe('Stream', () => {
  it('opens nothing before something is watched', () => {
    expect(sockets).toHaveLength(0);
    expect(stream.state).toBe('closed');
    stream.watchMeshes(() => undefined);
    expect(sockets).toHaveLength(1);
    expect(stream.state).toBe('connecting');
  });

  it('asks after the hello, and tells what comes', () => {
    const meshes = vi.fn();
    stream.watchMeshes(meshes);
    expect(last().sent).toEqual([]);
    const socket = greet();
    expect(stream.state).toBe('open');
    expect(stream.serverVersion).toBe('1.2.3');
    expect(socket.sent).toEqual([{ op: 'watch', id: 1, what: 'meshes' }]);
    socket.say({ type: 'meshes', id: 1, meshes: [] });
    expect(meshes).toHaveBeenCalledWith([]);
  });

  it('acknowledges after the listener has run and the page was painted', () => {
    const socket = watching(() => expect(last().ops('taken')).toEqual([]));
    socket.say({ type: 'meshes', id: 1, meshes: [] });
    expect(socket.ops('taken')).toEqual([]);
    paint();
    expect(socket.ops('taken')).toEqual([{ op: 'taken', id: 1 }]);
    vi.advanceTimersByTime(2000);
    expect(socket.ops('taken')).toHaveLength(1);
  });

  it('acknowledges on a page that is not painted', () => {
    vi.spyOn(document, 'hidden', 'get').mockReturnValue(true);
    const socket = watching(() => undefined);
    socket.say({ type: 'meshes', id: 1, meshes: [] });
    vi.advanceTimersByTime(99);
    expect(socket.ops('taken')).toHaveLength(0);
    vi.advanceTimersByTime(1);
    expect(socket.ops('taken')).toHaveLength(1);
  });

  it('acknowledges even if a listener fails', () => {
    const socket = watching(() => {
      throw new Error('broken');
    });
    expect(() => socket.say({ type: 'meshes', id: 1, meshes: [] })).toThrow('broken');
    paint();
    expect(socket.ops('taken')).toHaveLength(1);
  });

  it('comes back with growing delays and watches again', () => {
    const store = new MeshStore();
    stream.watchStatus('dev', store);
    greet().say({ type: 'status', id: 1, status: status() });
    for (const delay of [500, 1000, 2000, 4000, 8000, 10_000, 10_000]) {
      const num = sockets.length;
      last().break();
      expect(stream.state).toBe('connecting');
      vi.advanceTimersByTime(delay - 1);
      expect(sockets).toHaveLength(num);
      vi.advanceTimersByTime(1);
      expect(sockets).toHaveLength(num + 1);
    }
    const socket = greet();
    expect(socket.ops('watch')).toEqual([{ op: 'watch', id: 1, what: 'status', mesh: 'dev' }]);
    socket.break();
    vi.advanceTimersByTime(500);
    expect(last()).not.toBe(socket);
    expect(store.ended).toBeNull();
  });

  it('does not acknowledge over a new connection what came over the old one', () => {
    const socket = watching(() => undefined);
    socket.say({ type: 'meshes', id: 1, meshes: [] });
    socket.break();
    vi.advanceTimersByTime(500);
    paint();
    expect(greet().ops('taken')).toEqual([]);
  });

  it('shares one watch among the stores of a mesh', () => {
    const [first, second] = [new MeshStore(), new MeshStore()];
    const stopFirst = stream.watchStatus('dev', first);
    const socket = greet();
    socket.say({ type: 'status', id: 1, status: status() });
    const stopSecond = stream.watchStatus('dev', second);
    expect(second.status?.name).toBe('dev');
    socket.say({ type: 'delta', id: 1, mesh: {}, hosts: [], ranks: [rank(1, { state: 'busy' })] });
    expect([first, second].map(store => store.rank(1)?.state)).toEqual(['busy', 'busy']);
    expect(socket.ops('watch')).toHaveLength(1);
    stopFirst();
    stopFirst();
    expect(socket.ops('unwatch')).toEqual([]);
    stopSecond();
    expect(socket.ops('unwatch')).toEqual([{ op: 'unwatch', id: 1 }]);
  });

  it('ends stores whose mesh is gone or was never there', () => {
    const [gone, unknown] = [new MeshStore(), new MeshStore()];
    const stop = stream.watchStatus('dev', gone);
    stream.watchStatus('nope', unknown);
    const socket = greet();
    socket.say({ type: 'gone', id: 1, reason: 'stopped by a notebook' });
    socket.say({ type: 'error', id: 2, message: 'no mesh nope' });
    expect(gone.ended).toBe('stopped by a notebook');
    expect(unknown.ended).toBe('no mesh nope');
    stop();
    expect(socket.ops('unwatch')).toEqual([]);
    // A later mesh of that name is another watch.
    stream.watchStatus('dev', new MeshStore());
    expect(socket.ops('watch')).toHaveLength(3);
  });

  it('follows logs from where they were', () => {
    const [lines, end] = [vi.fn(), vi.fn()];
    const stop = stream.watchLogs('dev', '0-3', 'loss', 7, lines, end);
    expect(greet().ops('watch')[0]).toMatchObject({ what: 'logs', ranks: '0-3', grep: 'loss', after: 7 });
    last().say({ type: 'log', id: 1, lines: [], after: 99 });
    expect(lines).toHaveBeenCalledWith([], 99);
    last().break();
    vi.advanceTimersByTime(500);
    expect(greet().ops('watch')[0]).toMatchObject({ after: 99 });
    last().say({ type: 'gone', id: 1, reason: 'ended' });
    expect(end).toHaveBeenCalledExactlyOnceWith('ended');
    stop();
  });

  it('says that the extension is missing after three refusals, and recovers', () => {
    const states: string[] = [];
    stream.on(() => states.push(stream.state));
    stream.watchMeshes(() => undefined);
    for (const delay of [500, 1000, 2000, 4000]) {
      last().break();
      vi.advanceTimersByTime(delay);
    }
    expect(states).toEqual(['connecting', 'missing']);
    greet();
    expect(stream.state).toBe('open');
  });

  it('does not take a server that is being started again for a missing one', () => {
    watching(() => undefined);
    for (let i = 0; i < 5; i++) {
      last().break();
      vi.advanceTimersByTime(10_000);
    }
    expect(stream.state).toBe('connecting');
  });

  it('speaks no other protocol', () => {
    stream.watchMeshes(() => undefined);
    const socket = greet(PROTOCOL + 1);
    expect(stream.state).toBe('mismatch');
    expect(socket.sent).toEqual([]);
    expect(socket.isClosed).toBe(true);
    vi.advanceTimersByTime(10_000);
    expect(stream.state).toBe('mismatch');
    greet();
    expect(stream.state).toBe('open');
  });

  it('closes the socket some time after the last watch', () => {
    const stop = stream.watchMeshes(() => undefined);
    const socket = greet();
    stop();
    vi.advanceTimersByTime(1000);
    const stopAgain = stream.watchMeshes(() => undefined);
    vi.advanceTimersByTime(5000);
    expect(socket.isClosed).toBe(false);
    stopAgain();
    vi.advanceTimersByTime(2000);
    expect(socket.isClosed).toBe(true);
    expect(stream.state).toBe('closed');
    vi.advanceTimersByTime(60_000);
    expect(sockets).toHaveLength(1);
  });

  it('opens nothing once disposed', () => {
    watching(() => undefined);
    stream.dispose();
    vi.advanceTimersByTime(60_000);
    stream.watchMeshes(() => undefined);
    expect(sockets).toHaveLength(1);
  });
});

function watching(onMeshes: () => void): FakeSocket {
  stream.watchMeshes(onMeshes);
  return greet();
}
