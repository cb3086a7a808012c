import * as React from 'react';
import type { Run } from './controls';
import { RankGrid } from '../card/grid';
import { failures, failureText } from './health';
import { HostBars } from './hostbars';
import type { IMeshStatus } from '../protocol';
import { machines } from './machines';
import { RankDetails } from './rankdetails';
import type { MeshStore } from '../transport/store';
import { useTranslate } from '../translate';
import { useChanges } from '../notifier';
import { isNearlyUp, limitText } from '../words';

const MAX_FAILURES = 20;

/** The open part of a mesh: its ranks, what went wrong, the selected rank, its hosts. */
export function MeshBody({ store, run }: { store: MeshStore; run: Run }): JSX.Element {
  const t = useTranslate();
  const [selected, setSelected] = React.useState<number | null>(null);
  useChanges(React.useCallback(listener => store.on(listener), [store]));
  const status = store.status;
  return (
    <div className="mnb-body">
      {store.ended !== null && <p className="mnb-hint">{t('Ended: %1', store.ended)}</p>}
      {!status && store.ended === null && <p className="mnb-hint">{t('Waiting for its status ...')}</p>}
      {status && store.ended === null && <Limit status={status} />}
      <Grid store={store} onSelect={setSelected} />
      {status && <Failed store={store} />}
      {status && selected !== null && <RankDetails status={status} rank={selected} run={run} />}
      {machines(status?.hosts ?? []).map(hosts => (
        <HostBars key={hosts[0].index} hosts={hosts} isOnly={hosts.length === status?.hosts.length} />
      ))}
    </div>
  );
}

/** How long the engine leaves the hosts, and what they have cost. */
function Limit({ status }: { status: IMeshStatus }): JSX.Element | null {
  const t = useTranslate();
  const text = limitText(status, t);
  if (!text) {
    return null;
  }
  return isNearlyUp(status.ends_at) ? (
    <p className="mnb-problem">{t('%1. More time: %2', text, '%mesh extend 1h')}</p>
  ) : (
    <p className="mnb-hint">{text}</p>
  );
}

/** The grid is plain DOM that keeps itself up to date. */
function Grid({
  store,
  onSelect
}: {
  store: MeshStore;
  onSelect: (rank: number | null) => void;
}): JSX.Element {
  const t = useTranslate();
  const parent = React.useRef<HTMLDivElement>(null);
  React.useEffect(() => {
    const grid = new RankGrid(store, { translate: t, onSelect, compact: true });
    parent.current?.appendChild(grid.node);
    return () => {
      grid.dispose();
      grid.node.remove();
    };
  }, [store, onSelect, t]);
  return <div className="mnb-grid-place" ref={parent} />;
}

function Failed({ store }: { store: MeshStore }): JSX.Element {
  const t = useTranslate();
  const found = failures(store.status?.ranks ?? []);
  return (
    <ul className="mnb-failed" aria-live="polite" aria-label={t('Ranks that failed')}>
      {found.slice(0, MAX_FAILURES).map(failure => (
        <li key={`${failure.state} ${failure.reason}`}>{failureText(failure, t)}</li>
      ))}
      {found.length > MAX_FAILURES && <li>{t('and %1 more', found.length - MAX_FAILURES)}</li>}
    </ul>
  );
}
