import * as React from 'react';
import { Action, type Run } from './controls';
import { summaryHealth } from './health';
import { MeshBody } from './meshbody';
import type { Feed } from './model';
import { useChanges } from '../notifier';
import type { IMeshSummary } from '../protocol';
import { ResizeForm } from './resizeform';
import { MeshStore } from '../transport/store';
import { useTranslate } from '../translate';
import { shapeText, tally, type Translate } from '../words';

export interface IMeshSectionProps {
  mesh: IMeshSummary;
  feed: Feed;
  isOpen: boolean;
  /** Whether it can be seen; else its status is not watched. */
  isActive: boolean;
  onToggle: () => void;
  /** Something in it was clicked. */
  onUse: () => void;
  run: Run;
}

/** A mesh in the panel: a header that is always up to date, and below it what is watched while it's open. */
export function MeshSection({
  mesh,
  feed,
  isOpen,
  isActive,
  onToggle,
  onUse,
  run
}: IMeshSectionProps): JSX.Element {
  const t = useTranslate();
  const id = React.useId();
  const store = useStore(feed, mesh.name, isOpen && isActive && isWatchable(mesh));
  return (
    <section className="mnb-mesh" onClick={onUse} aria-label={t('Mesh %1', mesh.name)}>
      <header className="mnb-mesh-head">
        <button
          type="button"
          className="mnb-mesh-toggle"
          aria-expanded={isOpen}
          aria-controls={id}
          onClick={onToggle}
        >
          <span className="mnb-caret" aria-hidden="true" />
          <Dot mesh={mesh} />
          <span className="mnb-mesh-name mnb-ellipsis">{mesh.name}</span>
        </button>
        <DebugBadge mesh={mesh} run={run} />
      </header>
      <div className="mnb-mesh-tally">
        {mesh.sizes.length > 0 && <span className="mnb-mesh-shape">{shapeText(mesh.sizes)}</span>}
        {isWatchable(mesh) && <span>{tally(mesh.states, t)}</span>}
        {mesh.waits && <span>{t('waits for its hosts')}</span>}
      </div>
      {mesh.trouble && <p className="mnb-problem">{mesh.trouble}</p>}
      <div id={id} hidden={!isOpen}>
        {isOpen && <Toolbar mesh={mesh} store={store} run={run} />}
        {isOpen && isWatchable(mesh) && <MeshBody store={store} run={run} />}
      </div>
    </section>
  );
}

/** Say whether a mesh has ranks that can be looked at. */
function isWatchable(mesh: IMeshSummary): boolean {
  return !mesh.trouble && !mesh.waits;
}

/** Return the store of a mesh; it's kept up to date while `isWatched`, and keeps the last picture else. */
function useStore(feed: Feed, mesh: string, isWatched: boolean): MeshStore {
  const [store, setStore] = React.useState(() => new MeshStore());
  React.useEffect(() => {
    if (!isWatched) {
      return undefined;
    }
    if (store.ended !== null) {
      // It couldn't be watched before, and now perhaps it can.
      setStore(new MeshStore());
      return undefined;
    }
    return feed.watchStatus(mesh, store);
  }, [feed, mesh, store, isWatched]);
  return store;
}

function Dot({ mesh }: { mesh: IMeshSummary }): JSX.Element {
  const t = useTranslate();
  const health = summaryHealth(mesh);
  const text = { ok: t('ok'), busy: t('busy'), trouble: t('trouble') }[health];
  return <span className={`mnb-dot mnb-dot-${health}`} role="img" aria-label={text} title={text} />;
}

function DebugBadge({ mesh, run }: { mesh: IMeshSummary; run: Run }): JSX.Element | null {
  const t = useTranslate();
  const count = mesh.states.debugging ?? 0;
  return count === 0 ? null : (
    <button
      type="button"
      className="mnb-badge"
      title={t('%1 ranks wait in the debugger: open it', count)}
      onClick={() => void run('monarch-nb:debug', { mesh: mesh.name })}
    >
      {t('debugging')}
    </button>
  );
}

function Toolbar({ mesh, store, run }: { mesh: IMeshSummary; store: MeshStore; run: Run }): JSX.Element {
  const t = useTranslate();
  const [isResizing, setResizing] = React.useState(false);
  useChanges(React.useCallback(listener => store.on(listener), [store]));
  const act = (command: string, args = {}) => run(`monarch-nb:${command}`, { mesh: mesh.name, ...args });
  if (!isWatchable(mesh)) {
    return (
      <div className="mnb-actions">
        <Action label={t('Stop')} title={t('End its ranks')} onRun={() => act('stop')} />
      </div>
    );
  }
  return (
    <>
      <div className="mnb-actions" role="toolbar" aria-label={t('Mesh %1', mesh.name)}>
        <Action
          label={t('Interrupt')}
          title={t('Interrupt what its ranks run')}
          onRun={() => act('interrupt')}
        />
        <Action {...healing(mesh, store, t)} onRun={() => act('heal')} />
        <Action
          label={t('Resize')}
          title={t('Change its dimensions')}
          pressed={isResizing}
          onRun={() => setResizing(!isResizing)}
        />
        <Action
          label={t('Attach')}
          title={t('Put a cell that attaches to it into the current notebook')}
          onRun={() => act('attach')}
        />
        <Action label={t('Logs')} title={t('What its ranks have written')} onRun={() => act('logs')} />
        <Action label={t('Stop')} title={t('End its ranks')} onRun={() => act('stop')} />
      </div>
      {isResizing && (
        <ResizeForm
          sizes={mesh.sizes}
          resize={sizes => act('resize', { sizes })}
          onClose={() => setResizing(false)}
        />
      )}
    </>
  );
}

function healing(mesh: IMeshSummary, store: MeshStore, t: Translate) {
  const isHealing = store.status?.is_healing ?? false;
  const isLost = (mesh.states.lost ?? 0) > 0 || (store.status?.hosts.some(h => h.state === 'lost') ?? false);
  return {
    label: isHealing ? t('Healing ...') : t('Heal'),
    title: isLost ? t('Put lost ranks back') : t('No rank is lost'),
    disabled: isHealing || !isLost
  };
}
