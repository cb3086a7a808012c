import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

export const WIDGET_MIME_TYPE = 'application/vnd.jupyter.widget-view+json';

/** What the widget manager shows instead of a widget: it has no model of it, or no kernel yet. */
const FAILURE = /Error displaying widget|Loading widget/;

/**
 * The Jupyter widget of an output, tried out of sight: it's shown once it works, and hidden when it doesn't.
 *
 * Whether it works is only to be seen in what it has put on the page, at any later time.
 */
export class WidgetFallback {
  private readonly _renderer: IRenderMime.IRenderer;
  private readonly _observer: MutationObserver;

  /** @param onChange is told whether the widget works. */
  constructor(
    registry: IRenderMimeRegistry,
    model: IRenderMime.IMimeModel,
    host: HTMLElement,
    private readonly _onChange: (works: boolean) => void
  ) {
    this._renderer = registry.createRenderer(WIDGET_MIME_TYPE);
    this._renderer.node.hidden = true;
    Widget.attach(this._renderer, host);
    this._observer = new MutationObserver(() => this._look());
    this._observer.observe(this._renderer.node, { childList: true, subtree: true, characterData: true });
    this._renderer.renderModel(model).then(
      () => this._look(),
      () => this._tell(false)
    );
  }

  dispose(): void {
    this._observer.disconnect();
    if (!this._renderer.isDisposed) {
      if (this._renderer.isAttached) {
        Widget.detach(this._renderer);
      }
      this._renderer.dispose();
    }
  }

  private _look(): void {
    const { node } = this._renderer;
    this._tell(node.childElementCount > 0 && !FAILURE.test(node.textContent ?? ''));
  }

  private _tell(works: boolean): void {
    this._renderer.node.hidden = !works;
    this._onChange(works);
  }
}
