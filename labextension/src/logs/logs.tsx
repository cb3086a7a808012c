import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';
import { meshIcon } from '../icons';
import { LogModel, type ILogSource } from './model';
import { logSource } from '../panel/panes';
import { LogView } from './view';
import { ModelPane } from '../panel/modelpane';
import type { IMeshService } from '../transport/service';
import type { Translate } from '../words';

/** The output of ranks of a mesh. It is followed only while it is visible. */
export class LogPane extends ModelPane<LogModel> {
  constructor(
    /** Names the tab in the saved layout, whatever ranks it shows. */
    readonly key: string,
    readonly mesh: string,
    ranks: string,
    source: ILogSource,
    translate: Translate
  ) {
    super(new LogModel(ranks, source), translate);
    this.addClass('mnb-log-pane');
    this.model.isActive = false;
    void this.model.load();
  }

  protected override view(): JSX.Element {
    return <LogView model={this.model} />;
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

/** Make the tab, whose title has the selected ranks. */
export function createLogTab(options: ILogTabOptions): MainAreaWidget<LogPane> {
  const { key, mesh, ranks, translate } = options;
  const content = new LogPane(
    key,
    mesh,
    ranks,
    logSource(mesh, options.service, options.pageSize),
    translate
  );
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
