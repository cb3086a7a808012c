import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import { TranslateContext } from '../translate';
import type { Translate } from '../words';

/** What a pane shows, and whether it's to be kept up to date. */
export interface IPaneModel {
  isActive: boolean;
  dispose(): void;
}

/** A tab's content: a view of a model that is active only while the tab can be seen. */
export abstract class ModelPane<M extends IPaneModel> extends ReactWidget {
  constructor(
    readonly model: M,
    private readonly _translate: Translate
  ) {
    super();
  }

  /** What is shown, within the translator's context. */
  protected abstract view(): JSX.Element;

  override dispose(): void {
    this.model.dispose();
    super.dispose();
  }

  protected override render(): JSX.Element {
    return <TranslateContext.Provider value={this._translate}>{this.view()}</TranslateContext.Provider>;
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.model.isActive = this.isVisible;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.model.isActive = true;
  }

  protected override onBeforeHide(message: Message): void {
    this.model.isActive = false;
    super.onBeforeHide(message);
  }
}
