import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Api } from '../src/transport/api';
import { createMimeRenderer, MIME_TYPE } from '../src/card/mime';
import type { IMimeOptions } from '../src/card/mime';
import type { IMeshStatus } from '../src/protocol';
import type { MeshStore } from '../src/transport/store';
import type { Stream } from '../src/transport/stream';
import { WIDGET_MIME_TYPE } from '../src/card/widgetfallback';
import { status } from './fakes';

/** A stream of which the test is the server. */
class FakeStream {
  state = 'open';
  readonly watches: { mesh: string; store: MeshStore; isOver: boolean }[] = [];
  private readonly _listeners = new Set<() => void>();

  on(listener: () => void): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  become(state: string): void {
    this.state = state;
    this._listeners.forEach(listener => listener());
  }

  watchStatus(mesh: string, store: MeshStore): () => void {
    const watch = { mesh, store, isOver: false };
    this.watches.push(watch);
    return () => {
      watch.isOver = true;
    };
  }
}

let stream: FakeStream;
let output: IRenderMime.IRenderer;

function show(
  data: { snapshot: IMeshStatus; ended: string; when?: number },
  more: object = {}
): Promise<void> {
  return output.renderModel({
    data: { [MIME_TYPE]: data, ...more }
  } as unknown as IRenderMime.IMimeModel);
}

function create(options: IMimeOptions = {}): void {
  output = createMimeRenderer(stream as unknown as Stream, {} as Api, options).createRenderer(
    {} as IRenderMime.IRendererOptions
  );
  Widget.attach(output, document.body);
}

function text(selector: string): string {
  return output.node.querySelector(selector)?.textContent ?? '';
}

beforeEach(() => {
  stream = new FakeStream();
  create();
});

afterEach(() => {
  output.dispose();
  document.body.replaceChildren();
});

describe('a mesh in an output', () => {
  it('is a picture at first, and then live', async () => {
    await show({ snapshot: status(), ended: '' });
    expect(text('.mnb-card-name')).toBe('dev');
    expect(output.node.querySelectorAll('button')).toHaveLength(0);
    stream.watches[0].store.apply({ type: 'status', status: status(undefined, { num_cells: 1 }) });
    expect(text('button')).toBe('Interrupt');
    stream.watches[0].store.end('stopped');
    expect(text('.mnb-card-ended')).toBe('stopped');
    expect(text('.mnb-note')).toBe('');
  });

  it('stays a picture if the server does not know the mesh', async () => {
    await show({ snapshot: status(), ended: '', when: 1000 });
    expect(text('.mnb-note')).toBe('');
    stream.watches[0].store.end('no mesh dev');
    expect(text('.mnb-note')).toMatch(/^As of .*1970.*\. Not live/);
    expect(text('.mnb-card-ended')).toBe('');
  });

  it('is not live without the server extension', async () => {
    await show({ snapshot: status(), ended: '' });
    stream.become('missing');
    expect(text('.mnb-note')).toMatch(/^Not live/);
  });

  it('has ended if the name belongs to another mesh now', async () => {
    await show({ snapshot: status(), ended: '' });
    stream.watches[0].store.apply({ type: 'status', status: status(undefined, { pid: 43 }) });
    expect(text('.mnb-card-ended')).toBe('The mesh has ended.');
    expect(stream.watches[0].isOver).toBe(true);
  });

  it('says the day even of today: a saved notebook is read later', async () => {
    const now = Date.now() / 1000;
    await show({ snapshot: status(), ended: 'stopped', when: now });
    expect(text('.mnb-note')).toContain(String(new Date().getFullYear()));
  });

  it('watches nothing that has ended', async () => {
    await show({ snapshot: status(), ended: 'stopped', when: 1000 });
    expect(stream.watches).toHaveLength(0);
    expect(text('.mnb-card-ended')).toBe('stopped');
    expect(text('.mnb-note')).toMatch(/^As of/);
  });

  it('takes a newer snapshot without building anew', async () => {
    await show({ snapshot: status(), ended: '' });
    const cell = output.node.querySelector('.mnb-cell');
    const newer = status();
    newer.ranks[0] = { ...newer.ranks[0], state: 'lost' };
    await show({ snapshot: newer, ended: '' });
    expect(output.node.querySelector('.mnb-cell')).toBe(cell);
    expect(cell?.className).toContain('mnb-lost');
    expect(stream.watches).toHaveLength(1);
  });

  it('watches while it is attached', async () => {
    await show({ snapshot: status(), ended: '' });
    Widget.detach(output);
    expect(stream.watches[0].isOver).toBe(true);
    Widget.attach(output, document.body);
    expect(stream.watches).toHaveLength(2);
    expect(stream.watches[1].store).toBe(stream.watches[0].store);
  });
});

describe('a mesh that only the kernel knows', () => {
  /** Stands for ipywidgets: it shows what the test says. */
  class FakeView extends Widget implements IRenderMime.IRenderer {
    renderModel = vi.fn(() => Promise.resolve());
  }
  let view: FakeView;

  beforeEach(async () => {
    output.dispose();
    view = new FakeView();
    const registry = { createRenderer: () => view } as unknown as IRenderMimeRegistry;
    create({ findRenderMime: () => registry });
    await show({ snapshot: status(), ended: '' }, { [WIDGET_MIME_TYPE]: { model_id: 'x' } });
    stream.watches[0].store.end('no mesh dev');
  });

  it('is shown by its widget', async () => {
    view.node.innerHTML = '<div class="jupyter-widgets">live</div>';
    await vi.waitFor(() => expect(view.node.hidden).toBe(false));
    expect(output.node.querySelector('.mnb-card')?.closest('[hidden]')).not.toBeNull();
  });

  it('stays a picture if the widget fails', async () => {
    view.node.innerHTML = '<div>Error displaying widget: model not found</div>';
    await vi.waitFor(() => expect(view.renderModel).toHaveBeenCalledOnce());
    await Promise.resolve();
    expect(view.node.hidden).toBe(true);
    expect(output.node.querySelector('.mnb-card')?.closest('[hidden]')).toBeNull();
  });
});
