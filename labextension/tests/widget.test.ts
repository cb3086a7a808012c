import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { IMeshStatus } from '../src/protocol';
import widget from '../src/card/widget';
import type { IModel } from '../src/card/widget';
import { rank, status } from './fakes';

type Callback = (...args: unknown[]) => void;

/** The kernel's side of a widget. */
class FakeModel implements IModel {
  readonly sent: { kind: string; [field: string]: unknown }[] = [];
  readonly listeners = new Map<string, Set<Callback>>();
  readonly traits: { [name: string]: unknown };

  constructor(snapshot: IMeshStatus | object, ended = '') {
    this.traits = { snapshot, delta: {}, ended };
  }

  get(name: string): unknown {
    return this.traits[name];
  }

  on(name: string, callback: Callback): void {
    this.listeners.set(name, (this.listeners.get(name) ?? new Set()).add(callback));
  }

  off(name: string, callback: Callback): void {
    this.listeners.get(name)?.delete(callback);
  }

  send(content: unknown): void {
    this.sent.push(content as { kind: string });
  }

  set(name: string, value: unknown): void {
    this.traits[name] = value;
    this.fire(`change:${name}`);
  }

  fire(name: string, ...args: unknown[]): void {
    this.listeners.get(name)?.forEach(callback => callback(...args));
  }

  get numListeners(): number {
    return [...this.listeners.values()].reduce((n, callbacks) => n + callbacks.size, 0);
  }
}

let model: FakeModel;
let el: HTMLElement;

function button(label: string): HTMLButtonElement | undefined {
  return [...el.querySelectorAll('button')].find(b => b.textContent === label);
}

beforeEach(() => {
  model = new FakeModel(status());
  el = document.createElement('div');
  document.body.append(el);
});

afterEach(() => {
  document.body.replaceChildren();
  vi.unstubAllGlobals();
});

describe('the widget', () => {
  it('shows the snapshot, then the changes, then the end', () => {
    const stop = widget.render({ model, el });
    expect(el.querySelector('style')).not.toBeNull();
    expect(el.querySelector('.mnb-card-name')?.textContent).toBe('dev');
    model.set('delta', { mesh: {}, hosts: [], ranks: [rank(1, { state: 'busy' })], tick: 1 });
    expect(el.querySelector('[data-rank="1"]')?.className).toContain('mnb-busy');
    model.set('ended', 'stopped');
    expect(el.querySelector('.mnb-card-ended')?.textContent).toBe('stopped');
    stop();
  });

  it('waits for a snapshot', () => {
    const stop = widget.render({ model: (model = new FakeModel({})), el });
    model.set('snapshot', status());
    expect(el.querySelectorAll('.mnb-cell')).toHaveLength(4);
    stop();
  });

  it('says when it comes and goes, and leaves nothing behind', () => {
    const stop = widget.render({ model, el });
    expect(model.sent).toEqual([{ kind: 'view', visible: true }]);
    stop();
    expect(model.sent[1]).toEqual({ kind: 'view', visible: false });
    expect(model.numListeners).toBe(0);
    expect(el.childElementCount).toBe(0);
  });

  it('gives a second view what the first one has', () => {
    const stop = widget.render({ model, el });
    model.set('delta', { mesh: {}, hosts: [], ranks: [rank(1, { state: 'busy' })], tick: 1 });
    const other = document.createElement('div');
    const stopOther = widget.render({ model, el: other });
    expect(other.querySelector('[data-rank="1"]')?.className).toContain('mnb-busy');
    stop();
    stopOther();
    expect(model.numListeners).toBe(0);
  });

  it('asks the kernel where there is no server', async () => {
    const stop = widget.render({ model, el });
    button('Interrupt')?.click();
    await vi.waitFor(() => expect(model.sent).toHaveLength(2));
    const { id } = model.sent[1];
    expect(model.sent[1]).toMatchObject({ kind: 'action', action: 'interrupt', ranks: '' });
    model.fire('msg:custom', { kind: 'answer', id: 'of another view', ok: true, text: 'no' });
    model.fire('msg:custom', { kind: 'answer', id, ok: false, text: 'nothing runs' });
    await vi.waitFor(() => expect(el.querySelector('pre')?.textContent).toBe('nothing runs'));
    stop();
  });
});

describe('the widget on a page of a Jupyter server', () => {
  const fetched = vi.fn<typeof fetch>();

  beforeEach(() => {
    const config = document.createElement('script');
    config.id = 'jupyter-config-data';
    config.type = 'application/json';
    config.textContent = JSON.stringify({ baseUrl: '/user/me/', token: 'T' });
    document.body.append(config);
    document.cookie = '_xsrf=abc';
    vi.stubGlobal('fetch', fetched.mockReset());
  });

  it('asks the server', async () => {
    fetched.mockResolvedValue(new Response('{}', { status: 200 }));
    const stop = widget.render({ model, el });
    button('Interrupt')?.click();
    await vi.waitFor(() => expect(el.querySelector('pre')?.textContent).toBe('Done.'));
    const [url, init] = fetched.mock.calls[0];
    expect(String(url)).toMatch(/\/user\/me\/monarch_nb\/api\/meshes\/dev\/interrupt$/);
    expect(init).toMatchObject({
      method: 'POST',
      headers: { 'X-XSRFToken': 'abc', Authorization: 'token T' }
    });
    expect(model.sent).toHaveLength(1);
    stop();
  });

  it('shows what the server refuses', async () => {
    fetched.mockResolvedValue(new Response('{"message": "nothing runs"}', { status: 409 }));
    const stop = widget.render({ model, el });
    button('Interrupt')?.click();
    await vi.waitFor(() => expect(el.querySelector('pre')?.textContent).toBe('nothing runs'));
    expect(model.sent).toHaveLength(1);
    stop();
  });

  it.each([
    ['does not know', () => Promise.resolve(new Response('<html>', { status: 404 }))],
    ['cannot be reached', () => Promise.reject(new TypeError('network'))]
  ])('asks the kernel if the server %s', async (_what, answer) => {
    fetched.mockImplementation(answer);
    const stop = widget.render({ model, el });
    button('Interrupt')?.click();
    await vi.waitFor(() => expect(model.sent[1]).toMatchObject({ kind: 'action', action: 'interrupt' }));
    stop();
  });
});
