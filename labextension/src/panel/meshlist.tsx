import * as React from 'react';
import { Allocations } from './allocations';
import type { Run } from './controls';
import { MeshSection } from './meshsection';
import type { Feed, MeshesModel } from './model';
import { useChanges, useNotifier } from '../notifier';
import { PROTOCOL, type ICluster, type IStartRequest } from '../protocol';
import { StartForm } from './startform';
import { useTranslate } from '../translate';

const PATIENCE_MS = 1000;

export interface IMeshListProps {
  model: MeshesModel;
  /** Version of this extension, as it's named when the server's is another. */
  version: string;
  run: Run;
  start: (request: IStartRequest) => Promise<{ name: string }>;
  clusters: () => Promise<ICluster[]>;
}

/** All that the panel shows. */
export function MeshList({ model, version, run, start, clusters }: IMeshListProps): JSX.Element {
  useNotifier(model);
  useChanges(React.useCallback(listener => model.feed.on(listener), [model]));
  if (model.feed.state === 'missing') {
    return <Missing />;
  }
  if (model.feed.state === 'mismatch') {
    return <Mismatch version={version} serverVersion={model.feed.serverVersion} />;
  }
  return (
    <>
      <Connection feed={model.feed} isKnown={model.meshes !== null} />
      <Start model={model} start={start} clusters={clusters} />
      {model.meshes && <Allocations rows={model.allocations} run={run} />}
      {model.meshes?.map(mesh => (
        <MeshSection
          key={`${mesh.name} ${mesh.pid}`}
          mesh={mesh}
          feed={model.feed}
          isOpen={model.isOpen(mesh.name)}
          isActive={model.isActive}
          onToggle={() => model.toggle(mesh.name)}
          onUse={() => model.use(mesh.name)}
          run={run}
        />
      ))}
    </>
  );
}

function Missing(): JSX.Element {
  const t = useTranslate();
  return (
    <div className="mnb-message" role="status">
      <p>{t('The server extension monarch_nb is not enabled on this Jupyter server.')}</p>
      <p>{t('Type this where the server runs, then restart the server:')}</p>
      <pre>jupyter server extension enable monarch_nb</pre>
    </div>
  );
}

function Mismatch({
  version,
  serverVersion
}: {
  version: string;
  serverVersion: string | null;
}): JSX.Element {
  const t = useTranslate();
  return (
    <div className="mnb-message" role="status">
      <p>
        {t(
          'This page is monarch_nb %1 (protocol %2), the Jupyter server has %3, ' +
            'and they do not understand each other.',
          version,
          PROTOCOL,
          serverVersion ?? t('another version')
        )}
      </p>
      <p>
        {t(
          'Reload the page. If this stays, install the same version of monarch_nb for both ' +
            'and restart the server.'
        )}
      </p>
    </div>
  );
}

function Connection({ feed, isKnown }: { feed: Feed; isKnown: boolean }): JSX.Element | null {
  const t = useTranslate();
  const isLate = useLasting(feed.state !== 'open' || !isKnown, PATIENCE_MS);
  if (!isLate) {
    return null;
  }
  if (feed.state === 'open') {
    return <p className="mnb-hint">{t('Looking for meshes ...')}</p>;
  }
  return (
    <p className="mnb-hint" role="status">
      {isKnown
        ? t('No connection to the Jupyter server. This is the last that was heard; trying again ...')
        : t('Connecting ...')}
    </p>
  );
}

/** Whether something has been so for a while: what passes at once needs no words. */
function useLasting(isSo: boolean, after: number): boolean {
  const [isLasting, setLasting] = React.useState(false);
  React.useEffect(() => {
    if (!isSo) {
      return undefined;
    }
    const timer = setTimeout(() => setLasting(true), after);
    return () => {
      clearTimeout(timer);
      setLasting(false);
    };
  }, [isSo, after]);
  return isSo && isLasting;
}

function Start({
  model,
  start,
  clusters
}: Pick<IMeshListProps, 'model' | 'start' | 'clusters'>): JSX.Element | null {
  const t = useTranslate();
  if (!model.meshes) {
    return null;
  }
  const isOpen = model.isFormOpen;
  return (
    <section className="mnb-start">
      {model.meshes.length === 0 && model.allocations.length === 0 && (
        <p className="mnb-hint">{t('No mesh is running.')}</p>
      )}
      <button
        type="button"
        className="mnb-mesh-toggle"
        aria-expanded={isOpen}
        onClick={() => {
          model.isFormOpen = !isOpen;
        }}
      >
        <span className="mnb-caret" aria-hidden="true" />
        {t('Start a mesh')}
      </button>
      {isOpen && (
        <StartForm
          taken={[...model.meshes, ...model.allocations].map(({ name }) => name)}
          start={start}
          clusters={clusters}
          onStarted={mesh => model.started(mesh)}
        />
      )}
    </section>
  );
}
