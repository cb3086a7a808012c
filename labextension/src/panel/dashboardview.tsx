import * as React from 'react';
import { DebugModel } from '../debug/model';
import { DebugView } from '../debug/view';
import { cancelWarning, isOver } from './allocations';
import { messageOf } from '../errors';
import { stopWarning } from './health';
import { parseSizes } from './sizes';
import { LogModel } from '../logs/model';
import { LogView } from '../logs/view';
import { MeshList } from './meshlist';
import type { MeshesModel } from './model';
import { debugSource, logSource } from './panes';
import { Journal, Reading, Stacks } from './reading';
import type { IMeshService } from '../transport/service';
import { useTranslate } from '../translate';
import { shapeText, type Translate } from '../words';

const NUM_LINES = 500;
const NUM_ENTRIES = 200;

export interface IDashboardProps {
  service: IMeshService;
  model: MeshesModel;
  version: string;
}

/** Something that was opened beside the list of meshes. */
interface ITab {
  key: string;
  label: string;
  view: () => JSX.Element;
}

/** What a command is given. */
interface IArgs {
  mesh: string;
  ranks?: string;
  sizes?: [string, number][];
}

/** The list of meshes, as in JupyterLab's panel; beside it tabs, where JupyterLab would open some. */
export function DashboardView({ service, model, version }: IDashboardProps): JSX.Element {
  const t = useTranslate();
  const [tabs, setTabs] = React.useState<readonly ITab[]>([]);
  const [shown, setShown] = React.useState('');
  const [note, setNote] = React.useState<{ text: string; isProblem: boolean } | null>(null);
  useWatch(model);
  const open = (tab: ITab) => {
    setTabs(old => (old.some(({ key }) => key === tab.key) ? old : [...old, tab]));
    setShown(tab.key);
  };
  const close = (key: string) => {
    const left = tabs.filter(tab => tab.key !== key);
    setTabs(left);
    setShown(shown === key ? (left[left.length - 1]?.key ?? '') : shown);
  };
  const run = async (command: string, args: object) => {
    try {
      const { mesh } = args as IArgs;
      model.use(mesh);
      setNote(null);
      const message = await act(command.replace('monarch-nb:', ''), args as IArgs, {
        service,
        model,
        t,
        open
      });
      setNote(message ? { text: message, isProblem: false } : null);
    } catch (error) {
      setNote({ text: messageOf(error), isProblem: true });
    }
  };
  return (
    <div className="mnb-dashboard">
      <main className="mnb-panel" aria-label={t('Meshes')}>
        <h1 className="mnb-dashboard-title">{t('Meshes')}</h1>
        {note && (
          <p className={note.isProblem ? 'mnb-problem' : 'mnb-hint'} role="status">
            {note.text}
          </p>
        )}
        <MeshList
          model={model}
          version={version}
          run={run}
          start={request => service.api.start(request)}
          clusters={() => service.api.clusters()}
        />
      </main>
      {tabs.length > 0 && <Tabs tabs={tabs} shown={shown} show={setShown} close={close} />}
    </div>
  );
}

/** Keep the list up to date while the page can be seen. */
function useWatch(model: MeshesModel): void {
  React.useEffect(() => {
    const stop = model.watch();
    const update = () => {
      model.isActive = !document.hidden;
    };
    document.addEventListener('visibilitychange', update);
    update();
    return () => {
      document.removeEventListener('visibilitychange', update);
      stop();
    };
  }, [model]);
}

interface IContext extends Pick<IDashboardProps, 'service' | 'model'> {
  t: Translate;
  open: (tab: ITab) => void;
}

/** Do what a button says; returns what there is to tell. */
async function act(command: string, args: IArgs, { service, model, t, open }: IContext): Promise<string> {
  const { api } = service;
  const { mesh: name, ranks = '' } = args;
  const mesh = model.meshes?.find(each => each.name === name);
  switch (command) {
    case 'interrupt':
      await api.interrupt(name, ranks);
      return '';
    case 'heal':
      return api.heal(name);
    case 'resize':
      return resize(args, shapeText(mesh?.sizes ?? []), service, t);
    case 'stop':
      if (mesh && confirm(`${t('Stop mesh %1?', name)}\n\n${stopWarning(mesh, t)}`)) {
        await api.stop(name);
      }
      return '';
    case 'wait':
      await api.wait(name);
      return '';
    case 'cancel':
      await cancel(name, service, model, t);
      return '';
    case 'attach':
      return t('Put this into a cell of a notebook: %1', await api.attachCode(name));
    default:
      open(tabOf(command, name, ranks, service, t));
      return '';
  }
}

async function cancel(name: string, { api }: IMeshService, model: MeshesModel, t: Translate): Promise<void> {
  const row = model.allocations.find(each => each.name === name);
  const isSure = !row || isOver(row);
  if (isSure || confirm(`${t('Cancel the hosts of mesh %1?', name)}\n\n${cancelWarning(row, t)}`)) {
    await api.cancel(name);
  }
}

async function resize(
  { mesh, sizes }: IArgs,
  now: string,
  { api }: IMeshService,
  t: Translate
): Promise<string> {
  const wanted = sizes ?? parseSizes(prompt(t('Dimensions, as in gpus=4'), now) ?? '');
  return wanted ? api.resize(mesh, wanted) : '';
}

function tabOf(command: string, mesh: string, ranks: string, service: IMeshService, t: Translate): ITab {
  const { api } = service;
  const who = ranks ? t('%1 ranks %2', mesh, ranks) : mesh;
  const key = `${command} ${mesh} ${ranks}`;
  switch (command) {
    case 'logs':
      return {
        key,
        label: t('Logs: %1', who),
        view: () => <Logs mesh={mesh} ranks={ranks} service={service} />
      };
    case 'debug':
      return { key, label: t('Debugger: %1', mesh), view: () => <Debugger mesh={mesh} service={service} /> };
    case 'stacks': {
      const read = () => api.stacks(mesh, ranks);
      return { key, label: t('Stacks: %1', who), view: () => <Reading read={read} show={showStacks} /> };
    }
    case 'journal': {
      const read = () => api.journal(mesh, NUM_ENTRIES);
      return { key, label: t('Journal: %1', mesh), view: () => <Reading read={read} show={showJournal} /> };
    }
    default:
      throw new Error(t('This page has no %1', command));
  }
}

const showStacks = (text: string) => <Stacks text={text} />;
const showJournal = (entries: Parameters<typeof Journal>[0]['entries']) => <Journal entries={entries} />;

function Logs({ mesh, ranks, service }: { mesh: string; ranks: string; service: IMeshService }): JSX.Element {
  const model = useModel(
    () =>
      new LogModel(
        ranks,
        logSource(mesh, service, () => NUM_LINES)
      )
  );
  React.useEffect(() => void model.load(), [model]);
  return <LogView model={model} />;
}

function Debugger({ mesh, service }: { mesh: string; service: IMeshService }): JSX.Element {
  const t = useTranslate();
  const model = useModel(() => new DebugModel(debugSource(mesh, service), t));
  return <DebugView model={model} />;
}

/** A model that is active as long as what shows it is there. */
function useModel<M extends { isActive: boolean; dispose(): void }>(make: () => M): M {
  const [model] = React.useState(make);
  React.useEffect(() => {
    model.isActive = true;
    return () => {
      model.isActive = false;
    };
  }, [model]);
  return model;
}

interface ITabsProps {
  tabs: readonly ITab[];
  shown: string;
  show: (key: string) => void;
  close: (key: string) => void;
}

function Tabs({ tabs, shown, show, close }: ITabsProps): JSX.Element {
  const t = useTranslate();
  const tab = tabs.find(({ key }) => key === shown);
  return (
    <section className="mnb-dashboard-main">
      <div className="mnb-dashboard-tabs" role="tablist">
        {tabs.map(({ key, label }) => (
          <span key={key} className="mnb-dashboard-tab" data-shown={key === shown || undefined}>
            <button type="button" role="tab" aria-selected={key === shown} onClick={() => show(key)}>
              {label}
            </button>
            <button type="button" aria-label={t('Close %1', label)} onClick={() => close(key)}>
              ×
            </button>
          </span>
        ))}
      </div>
      <div className="mnb-dashboard-content" role="tabpanel" key={shown}>
        {tab?.view()}
      </div>
    </section>
  );
}
