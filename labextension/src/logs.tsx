import { MainAreaWidget } from '@jupyterlab/apputils';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import { meshIcon } from './icons';
import { LogModel, type ILogSource } from './logmodel';
import { LogView } from './logview';
import type { IMeshService } from './service';
import { TranslateContext } from './translate';
import type { Translate } from './words';

/** What ranks of a mesh have written. It follows only while it can be seen. */
export class LogPane extends ReactWidget {
  readonly model: LogModel;

  constructor(
    /** Names the tab in the saved layout, whatever ranks it shows. */
    readonly key: string,
    readonly mesh: string,
    ranks: string,
    source: ILogSource,
    private readonly _translate: Translate
  ) {
    super();
    this.addClass('mnb-log-pane');
    this.model = new LogModel(ranks, source);
    this.model.isActive = false;
    void this.model.load();
  }

  override dispose(): void {
    this.model.dispose();
    super.dispose();
  }

  protected override render(): JSX.Element {
    return (
      <TranslateContext.Provider value={this._translate}>
        <LogView model={this.model} />
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
}

export interface ILogTabOptions {
  key: string;
  mesh: string;
  ranks: string;
  service: IMeshService;
  translate: Translate;
  /** Lines per page, asked for each page. */
  pageSize: () => number;
}

/** Make the tab; its title follows the ranks that are looked at. */
export function createLogTab(options: ILogTabOptions): MainAreaWidget<LogPane> {
  const { key, mesh, ranks, translate } = options;
  const content = new LogPane(key, mesh, ranks, sourceOf(options), translate);
  const tab = new MainAreaWidget({ content });
  tab.toolbar.hide();
  tab.title.icon = meshIcon;
  tab.title.closable = true;
  const name = () => {
    const { ranks } = content.model;
    tab.title.label = ranks ? translate('Logs: %1 ranks %2', mesh, ranks) : translate('Logs: %1', mesh);
  };
  content.model.on(name);
  name();
  return tab;
}

function sourceOf({ mesh, service, pageSize }: ILogTabOptions): ILogSource {
  return {
    page: (ranks, grep, before) => service.api.logs(mesh, { ranks, grep, before, limit: pageSize() }),
    follow: (ranks, grep, after, onLines, onEnd) =>
      service.stream.watchLogs(mesh, ranks || 'all', grep, after, onLines, onEnd)
  };
}
