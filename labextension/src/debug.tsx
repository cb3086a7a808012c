import { MainAreaWidget } from '@jupyterlab/apputils';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import { DebugModel, type IDebugSource } from './debugmodel';
import { DebugView } from './debugview';
import { meshIcon } from './icons';
import type { IMeshService } from './service';
import { TranslateContext } from './translate';
import type { Translate } from './words';

/** The debugger of a mesh. It watches only while it can be seen. */
export class DebugPane extends ReactWidget {
  readonly model: DebugModel;

  constructor(
    readonly mesh: string,
    source: IDebugSource,
    private readonly _translate: Translate
  ) {
    super();
    this.addClass('mnb-debug-pane');
    this.model = new DebugModel(source, _translate);
  }

  override dispose(): void {
    this.model.dispose();
    super.dispose();
  }

  protected override render(): JSX.Element {
    return (
      <TranslateContext.Provider value={this._translate}>
        <DebugView model={this.model} />
      </TranslateContext.Provider>
    );
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

  /** Who opens the debugger wants to type. */
  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.querySelector<HTMLElement>('.mnb-debug-line')?.focus();
  }
}

/** Make the tab. */
export function createDebugTab(
  mesh: string,
  { api, stream }: IMeshService,
  translate: Translate
): MainAreaWidget<DebugPane> {
  const source: IDebugSource = {
    send: (ids, line) => api.debug(mesh, ids, line),
    watch: (onStops, onEnd) => stream.watchDebug(mesh, onStops, onEnd)
  };
  const content = new DebugPane(mesh, source, translate);
  const tab = new MainAreaWidget({ content });
  tab.toolbar.hide();
  tab.title.icon = meshIcon;
  tab.title.closable = true;
  tab.title.label = translate('Debugger: %1', mesh);
  return tab;
}
