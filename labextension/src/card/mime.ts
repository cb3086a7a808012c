import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';
import type { Api } from '../transport/api';
import { MeshCard } from './card';
import type { IActions } from './card';
import { element } from './dom';
import type { IMeshStatus } from '../protocol';
import { MeshStore } from '../transport/store';
import type { Stream } from '../transport/stream';
import { linesText } from './widgetactions';
import { WidgetFallback, WIDGET_MIME_TYPE } from './widgetfallback';
import { dateAndTime, untranslated } from '../words';
import type { Translate } from '../words';

export const MIME_TYPE = 'application/vnd.monarch-nb.mesh+json';

const NUM_LINES = 50;

export interface IMimeOptions {
  /** Find the registry that renders the outputs around a node: the notebook's own one knows its widgets. */
  findRenderMime?: (node: HTMLElement) => IRenderMimeRegistry | null;
}

/** The data of the output. `when` is the time of the snapshot, if the kernel has sent it. */
interface IMeshData {
  snapshot: IMeshStatus;
  ended: string;
  when?: number;
}

/** Make the renderer of meshes in outputs. */
export function createMimeRenderer(
  stream: Stream,
  api: Api,
  options: IMimeOptions = {}
): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [MIME_TYPE],
    defaultRank: -20,
    createRenderer: ({ translator }) => {
      const trans = translator?.load('monarch_nb');
      const translate: Translate = trans ? (text, ...args) => trans.__(text, ...args) : untranslated;
      return new MeshOutput(stream, api, translate, options);
    }
  };
}

/**
 * A mesh in an output: first the saved picture, then the live mesh, if the server has this same mesh.
 *
 * It watches only while it's attached: a notebook detaches outputs that are scrolled out of view.
 */
class MeshOutput extends Widget implements IRenderMime.IRenderer {
  private _data: IMeshData | null = null;
  private _picture: MeshStore | null = null;
  private _live: MeshStore | null = null;
  private _card: MeshCard | null = null;
  private _cardStore: MeshStore | null = null;
  private _model: IRenderMime.IMimeModel | null = null;
  private _fallback: WidgetFallback | null = null;
  private _stopWatching: (() => void) | null = null;
  private readonly _place = element('div');
  private readonly _note = element('div', 'mnb-note');

  constructor(
    private readonly _stream: Stream,
    private readonly _api: Api,
    private readonly _translate: Translate,
    private readonly _options: IMimeOptions
  ) {
    super();
    this.addClass('mnb-output');
    this._note.hidden = true;
    this.node.append(this._place, this._note);
  }

  /** May be called again, with a newer snapshot. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const data = model.data[MIME_TYPE] as unknown as IMeshData | undefined;
    if (!data?.snapshot) {
      return;
    }
    const isSame =
      this._data?.snapshot.name === data.snapshot.name && this._data.snapshot.pid === data.snapshot.pid;
    this._data = data;
    this._model = model;
    if (!isSame) {
      this._unwatch();
      this._picture = new MeshStore();
      this._live = null;
    }
    this._picture?.apply({ type: 'status', status: data.snapshot });
    if (data.ended) {
      this._picture?.end(data.ended);
    }
    this._watch();
    this._update();
  }

  override dispose(): void {
    this._unwatch();
    this._card?.dispose();
    this._fallback?.dispose();
    super.dispose();
  }

  protected override onAfterAttach(): void {
    this._watch();
  }

  protected override onBeforeDetach(): void {
    this._unwatch();
  }

  /** Watch the mesh, unless the output itself says that it has ended. */
  private _watch(): void {
    const hasSeenEnd = Boolean(this._live?.status) && this._live?.ended !== null;
    if (!this._data || this._data.ended || hasSeenEnd || this._stopWatching || !this.isAttached) {
      return;
    }
    const live = this._live?.ended === null ? this._live : new MeshStore();
    this._live = live;
    const stops = [
      live.on(() => this._update()),
      this._stream.on(() => this._update()),
      this._stream.watchStatus(this._data.snapshot.name, live)
    ];
    this._stopWatching = () => stops.forEach(stop => stop());
    this._update();
  }

  private _unwatch(): void {
    this._stopWatching?.();
    this._stopWatching = null;
  }

  private _update(): void {
    if (!this._data || !this._picture || this.isDisposed) {
      return;
    }
    const live = this._live;
    const isAnother =
      live?.status !== null && live?.status !== undefined && live.status.pid !== this._data.snapshot.pid;
    if (isAnother) {
      // Another mesh has the name now: this one no longer exists.
      this._unwatch();
      this._picture.end(this._translate('The mesh has ended.'));
    }
    const isLive = live?.status && !isAnother;
    this._showCard(isLive ? live : this._picture, Boolean(isLive));
    this._showNote(isLive ? '' : this._noteText());
    if (!isLive && live?.ended) {
      this._fallBack();
    }
  }

  private _showCard(store: MeshStore, isLive: boolean): void {
    if (store === this._cardStore) {
      return;
    }
    this._card?.dispose();
    this._cardStore = store;
    const actions = isLive ? apiActions(this._api, () => store.status?.name ?? '') : null;
    this._card = new MeshCard(store, actions, { translate: this._translate });
    this._place.replaceChildren(this._card.node);
  }

  /** Label the picture, once its state is known. */
  private _noteText(): string {
    const t = this._translate;
    const asOf = this._data?.when ? t('As of %1.', dateAndTime(this._data.when)) : '';
    if (this._picture?.ended) {
      return asOf;
    }
    const isAbsent = this._live?.ended || ['missing', 'mismatch'].includes(this._stream.state);
    return isAbsent
      ? [asOf, t('Not live: this Jupyter server has no such mesh.')].filter(Boolean).join(' ')
      : '';
  }

  private _showNote(text: string): void {
    this._note.textContent = text;
    this._note.hidden = !text;
  }

  /** The server doesn't know the mesh, but perhaps the kernel does: its widget is in the same output. */
  private _fallBack(): void {
    const registry = this._options.findRenderMime?.(this.node);
    if (!this._fallback && registry && this._model && WIDGET_MIME_TYPE in this._model.data) {
      this._fallback = new WidgetFallback(registry, this._model, this.node, works => {
        this._place.hidden = works;
        this._note.hidden = works || !this._note.textContent;
      });
    }
  }
}

function apiActions(api: Api, mesh: () => string): IActions {
  return {
    interrupt: ranks => api.interrupt(mesh(), ranks).then(() => ''),
    heal: () => api.heal(mesh()),
    stop: () => api.stop(mesh()).then(() => ''),
    stacks: ranks => api.stacks(mesh(), ranks),
    lastLines: rank =>
      api.logs(mesh(), { ranks: String(rank), limit: NUM_LINES }).then(page => linesText(page.lines))
  };
}
