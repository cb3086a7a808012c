import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, WidgetTracker, type MainAreaWidget } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { UUID } from '@lumino/coreutils';
import type { Widget } from '@lumino/widgets';
import { Api } from './transport/api';
import { addCommands } from './panel/commands';
import { labConnection } from './transport/connection';
import { createDebugTab, type DebugPane } from './debug/debug';
import { closeInputBoxes } from './panel/inputbox';
import { watchKernels } from './card/left';
import { createLogTab, type LogPane } from './logs/logs';
import { createMimeRenderer } from './card/mime';
import { MeshesModel } from './panel/model';
import { MeshPanel } from './panel/panel';
import { IMeshService } from './transport/service';
import { DEFAULT_SETTINGS, type IMeshSettings } from './settings';
import { MeshStatusItem } from './panel/statusbar';
import { Stream } from './transport/stream';
import { openTab } from './panel/tabs';
import { VERSION } from './transport/version';
import type { Translate } from './words';

export { IMeshService } from './transport/service';

const PANEL_RANK = 900;
const RENDERER_RANK = -20;

/** The connection of the page, opened with the first watch. */
const service: JupyterFrontEndPlugin<IMeshService> = {
  id: 'monarch-nb:service',
  description: 'The connection to the meshes of this user.',
  autoStart: true,
  provides: IMeshService,
  activate: (app: JupyterFrontEnd) => {
    const connection = labConnection(app.serviceManager.serverSettings);
    return { api: new Api(connection), stream: new Stream(() => connection.openSocket()) };
  }
};

/** The renderer of meshes in outputs of notebooks, and related services. */
const renderer: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:renderer',
  description: 'Shows meshes in outputs.',
  autoStart: true,
  requires: [IRenderMimeRegistry, IMeshService],
  optional: [INotebookTracker],
  activate: (
    _app: JupyterFrontEnd,
    registry: IRenderMimeRegistry,
    { stream, api }: IMeshService,
    notebooks: INotebookTracker | null
  ) => {
    if (notebooks) {
      closeInputBoxes(notebooks);
    }
    const findRenderMime = (node: HTMLElement) =>
      notebooks?.find(panel => panel.node.contains(node))?.content.rendermime ?? null;
    registry.addFactory(createMimeRenderer(stream, api, { findRenderMime }), RENDERER_RANK);
  }
};

/** The panel, the commands, the logs and the status bar. */
const plugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:plugin',
  description: 'Meshes of ranks: a panel, logs, a line in the status bar, and commands.',
  autoStart: true,
  requires: [IMeshService],
  optional: [
    ILabShell,
    ICommandPalette,
    IStatusBar,
    ILayoutRestorer,
    INotebookTracker,
    ISettingRegistry,
    ITranslator
  ],
  activate: (
    app: JupyterFrontEnd,
    service: IMeshService,
    labShell: ILabShell | null,
    palette: ICommandPalette | null,
    statusBar: IStatusBar | null,
    restorer: ILayoutRestorer | null,
    notebooks: INotebookTracker | null,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('monarch_nb');
    const translate: Translate = (text, ...args) => trans.__(text, ...args);
    const model = new MeshesModel(service.stream);
    let settings = DEFAULT_SETTINGS;

    const open = (tab: Widget) => openTab(app, tab, labShell !== null);
    const logs = addLogs(app, restorer, open, (key, mesh, ranks) =>
      createLogTab({ key, mesh, ranks, service, translate, pageSize: () => settings.logLines })
    );

    const openDebugger = addDebuggers(app, restorer, open, mesh => createDebugTab(mesh, service, translate));

    const panel = new MeshPanel({
      model,
      api: service.api,
      version: VERSION,
      translate,
      run: (command, args) => app.commands.execute(command, args as never)
    });
    app.shell.add(panel, settings.panelArea, { rank: PANEL_RANK, type: 'Mesh' });
    restorer?.add(panel, panel.id);
    const openPanel = () => app.shell.activateById(panel.id);

    addCommands({
      app,
      api: service.api,
      model,
      translate,
      palette,
      notebooks,
      openPanel,
      openLogs: logs,
      openDebugger,
      openTab: open
    });
    const item = addStatusItem(statusBar, model, translate, openPanel);
    if (notebooks) {
      followKernel(notebooks, id => {
        model.kernel = id;
      });
    }

    const apply = (next: IMeshSettings) => {
      if (next.panelArea !== settings.panelArea) {
        app.shell.add(panel, next.panelArea, { rank: PANEL_RANK, type: 'Mesh' });
      }
      settings = next;
      model.openByDefault = next.openMeshesByDefault;
      if (item) {
        item.isEnabled = next.showStatusBar;
      }
    };
    followSettings(registry, apply);
  }
};

/** Report the id of the current notebook's kernel, now and whenever it changes. */
function followKernel(notebooks: INotebookTracker, report: (id: string) => void): void {
  const update = () => report(notebooks.currentWidget?.sessionContext.session?.kernel?.id ?? '');
  notebooks.currentChanged.connect(update);
  notebooks.widgetAdded.connect((_, panel) => panel.sessionContext.kernelChanged.connect(update));
  update();
}

/** Apply the settings, now and whenever they change; without any, the defaults. */
function followSettings(registry: ISettingRegistry | null, apply: (settings: IMeshSettings) => void): void {
  if (!registry) {
    apply(DEFAULT_SETTINGS);
    return;
  }
  registry.load(plugin.id).then(
    loaded => {
      const read = () => apply({ ...DEFAULT_SETTINGS, ...(loaded.composite as Partial<IMeshSettings>) });
      loaded.changed.connect(read);
      read();
    },
    () => apply(DEFAULT_SETTINGS)
  );
}

function addStatusItem(
  statusBar: IStatusBar | null,
  model: MeshesModel,
  translate: Translate,
  open: () => void
): MeshStatusItem | null {
  if (!statusBar) {
    return null;
  }
  const item = new MeshStatusItem(model, translate, open);
  statusBar.registerStatusItem('monarch-nb:status', {
    item,
    align: 'left',
    rank: PANEL_RANK,
    isActive: () => item.isActive,
    activeStateChanged: item.activeStateChanged
  });
  return item;
}

type LogTab = MainAreaWidget<LogPane>;

/**
 * Keep track of the tabs with logs, so that a reload of the page brings them back; returns how to open one.
 */
function addLogs(
  app: JupyterFrontEnd,
  restorer: ILayoutRestorer | null,
  openTab: (tab: Widget) => void,
  create: (key: string, mesh: string, ranks: string) => LogTab
): (mesh: string, ranks: string) => void {
  const tracker = new WidgetTracker<LogTab>({ namespace: 'monarch-nb-logs' });
  const open = (key: string, mesh: string, ranks: string) => {
    const tab = create(key, mesh, ranks);
    void tracker.add(tab);
    // Its title says which ranks it shows.
    tab.title.changed.connect(() => void tracker.save(tab));
    openTab(tab);
  };
  // The mesh may be gone by the next reload; the tab then says so, where the command would refuse.
  app.commands.addCommand('monarch-nb:restore-logs', {
    label: 'Restore Logs of a Mesh',
    describedBy: { args: RESTORE_ARGUMENTS },
    execute: args => open(String(args.key), String(args.mesh), String(args.ranks))
  });
  void restorer?.restore(tracker, {
    command: 'monarch-nb:restore-logs',
    args: ({ content }) => ({ key: content.key, mesh: content.mesh, ranks: content.model.ranks }),
    // The layout isn't saved when a name changes, so the name must not contain the ranks.
    name: ({ content }) => content.key
  });
  return (mesh, ranks) => {
    const same = tracker.find(({ content }) => content.mesh === mesh && content.model.ranks === ranks);
    if (same) {
      app.shell.activateById(same.id);
    } else {
      open(UUID.uuid4(), mesh, ranks);
    }
  };
}

type DebugTab = MainAreaWidget<DebugPane>;

/**
 * Keep track of the debuggers, one per mesh, so that a reload of the page brings them back; returns how to
 * open one.
 */
function addDebuggers(
  app: JupyterFrontEnd,
  restorer: ILayoutRestorer | null,
  openTab: (tab: Widget) => void,
  create: (mesh: string) => DebugTab
): (mesh: string) => void {
  const tracker = new WidgetTracker<DebugTab>({ namespace: 'monarch-nb-debug' });
  const open = (mesh: string) => {
    const same = tracker.find(({ content }) => content.mesh === mesh);
    if (same) {
      app.shell.activateById(same.id);
      return;
    }
    const tab = create(mesh);
    void tracker.add(tab);
    openTab(tab);
  };
  // Where the command asks which mesh, and refuses one that is gone, a restored tab says that it has ended.
  app.commands.addCommand('monarch-nb:restore-debug', {
    label: 'Restore the Debugger of a Mesh',
    describedBy: { args: { type: 'object', required: ['mesh'], properties: { mesh: { type: 'string' } } } },
    execute: args => open(String(args.mesh))
  });
  void restorer?.restore(tracker, {
    command: 'monarch-nb:restore-debug',
    args: ({ content }) => ({ mesh: content.mesh }),
    name: ({ content }) => content.mesh
  });
  return open;
}

const RESTORE_ARGUMENTS = {
  type: 'object',
  required: ['key', 'mesh', 'ranks'],
  properties: { key: { type: 'string' }, mesh: { type: 'string' }, ranks: { type: 'string' } }
};

/** Marks outputs of cells whose kernel ends while they run. */
const left: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:left',
  description: 'Says in a cell that its kernel has gone, and that it runs on in its mesh.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ITranslator],
  activate: (_app: JupyterFrontEnd, notebooks: INotebookTracker, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('monarch_nb');
    watchKernels(notebooks, (text, ...args) => trans.__(text, ...args));
  }
};

export default [service, renderer, plugin, left];
