import { MainAreaWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import { DebugModel, type IDebugSource } from './model';
import { DebugView } from './view';
import { meshIcon } from '../icons';
import { ModelPane } from '../panel/modelpane';
import { debugSource } from '../panel/panes';
import type { IMeshService } from '../transport/service';
import type { Translate } from '../words';

/** The debugger of a mesh. It watches only while it can be seen. */
export class DebugPane extends ModelPane<DebugModel> {
  constructor(
    readonly mesh: string,
    source: IDebugSource,
    translate: Translate
  ) {
    super(new DebugModel(source, translate), translate);
    this.addClass('mnb-debug-pane');
  }

  protected override view(): JSX.Element {
    return <DebugView model={this.model} />;
  }

  /** Focus the prompt when the debugger is opened. */
  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.querySelector<HTMLElement>('.mnb-debug-line')?.focus();
  }
}

/** Make the tab. */
export function createDebugTab(
  mesh: string,
  service: IMeshService,
  translate: Translate
): MainAreaWidget<DebugPane> {
  const content = new DebugPane(mesh, debugSource(mesh, service), translate);
  const tab = new MainAreaWidget({ content });
  tab.toolbar.hide();
  tab.title.icon = meshIcon;
  tab.title.closable = true;
  tab.title.label = translate('Debugger: %1', mesh);
  return tab;
}
