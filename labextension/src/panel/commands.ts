import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, InputDialog, Notification, showDialog, type ICommandPalette } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { Widget } from '@lumino/widgets';
import * as React from 'react';
import { cancelWarning, isOver } from './allocations';
import type { Api } from '../transport/api';
import { createDocument } from './documents';
import { messageOf } from '../errors';
import { stopWarning } from './health';
import type { MeshesModel } from './model';
import { insertCell } from './notebooks';
import type { IAllocation, IMeshSummary } from '../protocol';
import { Journal, Stacks } from './reading';
import { parseSizes } from './sizes';
import { shapeText, type Translate } from '../words';

/** What the commands act on. */
export interface ICommandContext {
  app: JupyterFrontEnd;
  api: Api;
  model: MeshesModel;
  translate: Translate;
  palette: ICommandPalette | null;
  notebooks: INotebookTracker | null;
  openPanel: () => void;
  openLogs: (mesh: string, ranks: string) => void;
  openDebugger: (mesh: string) => void;
  openTab: (tab: Widget) => void;
}

/** What a command may be given; what is left out is asked for, or means all. */
interface IArgs {
  mesh?: string;
  ranks?: string;
  sizes?: [string, number][];
}

interface ICommand {
  id: string;
  label: string;
  caption: string;
  execute: (args: IArgs) => unknown;
}

const JOURNAL_ENTRIES = 1000;

const ARGUMENTS = {
  type: 'object',
  properties: {
    mesh: { type: 'string', description: 'Name of the mesh; asked for if there are several' },
    ranks: { type: 'string', description: 'Rank set, as in 0-3,7; empty: all' },
    sizes: { type: 'array', description: 'For resize: pairs of a dimension and its size' }
  }
};

/**
 * Add all commands to the application, and to the palette if there is one. Failures are shown, and never
 * thrown.
 */
export function addCommands(context: ICommandContext): void {
  for (const { id, label, caption, execute } of [...views(context), ...actions(context), ...cells(context)]) {
    const command = `monarch-nb:${id}`;
    context.app.commands.addCommand(command, {
      label,
      caption,
      describedBy: { args: ARGUMENTS },
      execute: async args => {
        try {
          await execute(args as IArgs);
        } catch (error) {
          Notification.error(messageOf(error));
        }
      }
    });
    context.palette?.addItem({ command, category: context.translate('Mesh') });
  }
}

function views(context: ICommandContext): ICommand[] {
  const { api, model, translate: t, openPanel, openLogs, openDebugger, openTab } = context;
  return [
    {
      id: 'open-panel',
      label: t('Show the Mesh Panel'),
      caption: t('Meshes, their ranks and hosts'),
      execute: openPanel
    },
    {
      id: 'start',
      label: t('Start a Mesh ...'),
      caption: t('Open the form that starts a mesh'),
      execute: () => {
        model.isFormOpen = true;
        openPanel();
      }
    },
    {
      id: 'logs',
      label: t('Show the Logs of a Mesh'),
      caption: t('What its ranks have written'),
      execute: args => withMesh(context, args, async mesh => openLogs(mesh.name, args.ranks ?? ''))
    },
    {
      id: 'stacks',
      label: t('Show the Stacks of a Mesh'),
      caption: t('Where its ranks are in their Python code'),
      execute: args =>
        withMesh(context, args, async ({ name }) => {
          const ranks = args.ranks ?? '';
          const label = ranks ? t('Stacks: %1 ranks %2', name, ranks) : t('Stacks: %1', name);
          const show = (text: string) => React.createElement(Stacks, { text });
          openTab(createDocument(label, () => api.stacks(name, ranks), show, t));
        })
    },
    {
      id: 'debug',
      label: t('Debug a Mesh'),
      caption: t('Where its ranks have stopped, with one prompt for all of them'),
      execute: args => withMesh(context, args, async mesh => openDebugger(mesh.name))
    },
    {
      id: 'journal',
      label: t('Show the Journal of a Mesh'),
      caption: t('Cells that were run on it: by whom, on which ranks, how they ended'),
      execute: args =>
        withMesh(context, args, async ({ name }) => {
          const show = (entries: Parameters<typeof Journal>[0]['entries']) =>
            React.createElement(Journal, { entries });
          openTab(createDocument(t('Journal: %1', name), () => api.journal(name, JOURNAL_ENTRIES), show, t));
        })
    }
  ];
}

function actions(context: ICommandContext): ICommand[] {
  const { api, translate: t } = context;
  return [
    {
      id: 'interrupt',
      label: t('Interrupt a Mesh'),
      caption: t('Interrupt what its ranks run'),
      execute: args => withMesh(context, args, mesh => api.interrupt(mesh.name, args.ranks))
    },
    {
      id: 'heal',
      label: t('Heal a Mesh'),
      caption: t('Put lost ranks back'),
      execute: args => withMesh(context, args, async mesh => report(await api.heal(mesh.name)))
    },
    {
      id: 'resize',
      label: t('Resize a Mesh ...'),
      caption: t('Change its dimensions'),
      execute: args => withMesh(context, args, mesh => resize(context, mesh, args.sizes))
    },
    {
      id: 'wait',
      label: t('Wait for the Hosts of a Mesh'),
      caption: t('Start its ranks once its hosts are there'),
      execute: args => withAllocation(context, args, ({ name }) => api.wait(name))
    },
    {
      id: 'cancel',
      label: t('Cancel the Hosts of a Mesh ...'),
      caption: t('Give hosts of a cluster back, or give up a place in its queue'),
      execute: args => withAllocation(context, args, row => cancel(context, row))
    },
    {
      id: 'stop',
      label: t('Stop a Mesh ...'),
      caption: t('End its ranks'),
      execute: args => withMesh(context, args, mesh => stop(context, mesh))
    }
  ];
}

function cells(context: ICommandContext): ICommand[] {
  const { api, translate: t, notebooks } = context;
  const refuse = () =>
    Notification.warning(t('No notebook is open. Open one, then try again.'), { autoClose: 5000 });
  return [
    {
      id: 'attach',
      label: t('Attach the Notebook to a Mesh'),
      caption: t('Put a cell that attaches to it into the current notebook'),
      execute: args =>
        withMesh(context, args, async mesh => {
          if (!notebooks?.currentWidget || !insertCell(notebooks, await api.attachCode(mesh.name))) {
            refuse();
          }
        })
    },
    {
      id: 'debug-in-cell',
      label: t('Debug the Mesh of the Notebook in a Cell'),
      caption: t('Run %mesh debug in a new cell of the current notebook'),
      execute: () => {
        if (!insertCell(notebooks, '%mesh debug', true)) {
          refuse();
        }
      }
    }
  ];
}

async function stop({ api, translate: t }: ICommandContext, mesh: IMeshSummary): Promise<void> {
  const { button } = await showDialog({
    title: t('Stop mesh %1?', mesh.name),
    body: stopWarning(mesh, t),
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: t('Stop') })],
    defaultButton: 0
  });
  if (button.accept) {
    await api.stop(mesh.name);
  }
}

async function cancel({ api, translate: t }: ICommandContext, row: IAllocation): Promise<void> {
  if (!isOver(row)) {
    const { button } = await showDialog({
      title: t('Cancel the hosts of mesh %1?', row.name),
      body: cancelWarning(row, t),
      buttons: [
        Dialog.cancelButton({ label: t('Keep them') }),
        Dialog.warnButton({ label: t('Cancel the hosts') })
      ],
      defaultButton: 0
    });
    if (!button.accept) {
      return;
    }
  }
  await api.cancel(row.name);
}

async function resize(
  { api, translate: t }: ICommandContext,
  mesh: IMeshSummary,
  sizes?: [string, number][]
): Promise<void> {
  const wanted = sizes ?? (await askSizes(mesh, t));
  if (wanted) {
    report(await api.resize(mesh.name, wanted));
  }
}

async function askSizes(mesh: IMeshSummary, t: Translate): Promise<[string, number][] | null> {
  const answer = await InputDialog.getText({
    title: t('Resize mesh %1', mesh.name),
    label: t('Dimensions, as in gpus=4'),
    text: shapeText(mesh.sizes),
    okLabel: t('Resize')
  });
  if (!answer.button.accept) {
    return null;
  }
  const sizes = parseSizes(answer.value ?? '');
  if (!sizes) {
    throw new Error(t('Dimensions are written as in hosts=2, gpus=4; not %1', answer.value ?? ''));
  }
  return sizes;
}

function report(text: string): void {
  if (text) {
    Notification.info(text, { autoClose: 8000 });
  }
}

/** Do something with the mesh that is meant: the one given, the only one, or the one that people pick. */
async function withMesh(
  context: ICommandContext,
  { mesh: name }: IArgs,
  act: (mesh: IMeshSummary) => Promise<unknown>
): Promise<void> {
  const { api, model, translate: t } = context;
  const meshes = await api.meshes();
  const none = t('No mesh is running. Start one in the Mesh panel.');
  const mesh = name === undefined ? await pick(context, meshes, none) : meshes.find(m => m.name === name);
  if (mesh) {
    model.use(mesh.name);
    await act(mesh);
  } else if (name !== undefined) {
    throw new Error(t('Mesh %1 is not running', name));
  }
}

/** Do something with a request: of the mesh given, the only one, or the one that people pick. */
async function withAllocation(
  context: ICommandContext,
  { mesh: name }: IArgs,
  act: (row: IAllocation) => Promise<unknown>
): Promise<void> {
  const { api, translate: t } = context;
  const rows = await api.allocations();
  const none = t('No hosts of a cluster were asked for.');
  const row = name === undefined ? await pick(context, rows, none) : rows.find(each => each.name === name);
  if (row) {
    await act(row);
  } else if (name !== undefined) {
    throw new Error(t('Mesh %1 has no hosts of a cluster', name));
  }
}

async function pick<T extends { name: string }>(
  { model, translate: t }: ICommandContext,
  meshes: T[],
  none: string
): Promise<T | null> {
  if (!meshes.length) {
    Notification.info(none, { autoClose: 5000 });
    return null;
  }
  if (meshes.length === 1) {
    return meshes[0];
  }
  const items = meshes.map(mesh => mesh.name);
  const current = model.current ? items.indexOf(model.current.name) : 0;
  const answer = await InputDialog.getItem({ title: t('Which mesh?'), items, current: Math.max(current, 0) });
  return (answer.button.accept && meshes.find(mesh => mesh.name === answer.value)) || null;
}
