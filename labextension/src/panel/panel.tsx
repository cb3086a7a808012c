import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import type { Api } from '../transport/api';
import type { Run } from './controls';
import { meshIcon } from '../icons';
import { MeshList } from './meshlist';
import type { MeshesModel } from './model';
import { TranslateContext } from '../translate';
import type { Translate } from '../words';

export interface IPanelOptions {
  model: MeshesModel;
  api: Api;
  version: string;
  translate: Translate;
  run: Run;
}

/** The side panel. It watches only while it can be seen. */
export class MeshPanel extends ReactWidget {
  private _unwatch: (() => void) | null = null;

  constructor(private readonly _options: IPanelOptions) {
    super();
    this.id = 'monarch-nb-panel';
    this.addClass('mnb-panel');
    this.title.icon = meshIcon;
    this.title.caption = _options.translate('Mesh');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _options.translate('Mesh'));
  }

  protected override render(): JSX.Element {
    const { model, api, version, translate, run } = this._options;
    return (
      <TranslateContext.Provider value={translate}>
        <MeshList
          model={model}
          version={version}
          run={run}
          start={request => api.start(request)}
          clusters={() => api.clusters()}
        />
      </TranslateContext.Provider>
    );
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._watch();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) {
      this._watch();
    }
  }

  protected override onBeforeHide(message: Message): void {
    this._rest();
    super.onBeforeHide(message);
  }

  protected override onBeforeDetach(message: Message): void {
    this._rest();
    super.onBeforeDetach(message);
  }

  private _watch(): void {
    if (!this._unwatch) {
      this._unwatch = this._options.model.watch();
      this._options.model.isActive = true;
    }
  }

  private _rest(): void {
    if (this._unwatch) {
      this._unwatch();
      this._unwatch = null;
      this._options.model.isActive = false;
    }
  }
}
