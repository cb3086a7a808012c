import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

export const WIDGET_MIME_TYPE = 'application/vnd.jupyter.widget-view+json';

/** The text that the widget manager shows without a model of the widget, or without a kernel. */
const FAILURE = /Error displaying widget|Loading widget/;

/**
 * The Jupyter widget of an output, rendered invisibly: it's shown once it works, and hidden when it doesn't.
 *
 * Whether it works can only be seen from the nodes that it renders, at any later time.
 */
export class WidgetFallback {
  private readonly _renderer: IRenderMime.IRenderer;
  private readonly _observer: MutationObserver;

  /** @param onChange called with whether the widget works. */
  constructor(
    registry: IRenderMimeRegistry,
    model: IRenderMime.IMimeModel,
    host: HTMLElement,
    private readonly _onChange: (works: boolean) => void
  ) {
    this._renderer = registry.createRenderer(WIDGET_MIME_TYPE);
    this._renderer.node.hidden = true;
    Widget.attach(this._renderer, host);
    this._observer = new MutationObserver(() => this._update());
    this._observer.observe(this._renderer.node, { childList: true, subtree: true, characterData: true });
    this._renderer.renderModel(model).then(
      () => this._update(),
      () => this._show(false)
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

  private _update(): void {
    const { node } = this._renderer;
    this._show(node.childElementCount > 0 && !FAILURE.test(node.textContent ?? ''));
  }

  private _show(works: boolean): void {
    this._renderer.node.hidden = !works;
    this._onChange(works);
  }
}
