import * as React from 'react';
import { Action, type Run } from './controls';
import type { IAllocation } from '../protocol';
import { useTranslate } from '../translate';
import { costText, duration, hostsText, type Translate, untranslated } from '../words';

/** The requests for hosts of engines: what waits, what is there, what has ended. */
export function Allocations({ rows, run }: { rows: IAllocation[]; run: Run }): JSX.Element | null {
  const t = useTranslate();
  const now = useNow(rows.length > 0);
  if (!rows.length) {
    return null;
  }
  return (
    <section className="mnb-requests" aria-label={t('Hosts of clusters')}>
      <h2 className="mnb-requests-title">{t('Hosts of clusters')}</h2>
      {rows.map(row => (
        <Allocation key={`${row.name} ${row.job} ${row.submitted_at}`} row={row} now={now} run={run} />
      ))}
    </section>
  );
}

interface IAllocationProps {
  row: IAllocation;
  now: number;
  run: Run;
}

function Allocation({ row, now, run }: IAllocationProps): JSX.Element {
  const t = useTranslate();
  const act = (command: string) => run(`monarch-nb:${command}`, { mesh: row.name });
  const problem = row.state === 'failed' ? row.reason : row.trouble;
  return (
    <div className="mnb-request" role="group" aria-label={t('Hosts of mesh %1', row.name)}>
      <div className="mnb-request-head">
        <span className="mnb-mesh-name mnb-ellipsis">{row.name}</span>
        <span className="mnb-request-job mnb-ellipsis">{row.job}</span>
      </div>
      <div className="mnb-request-state" role="status">
        {allocationText(row, now, t)}
      </div>
      {problem && <p className="mnb-problem">{problem}</p>}
      <div className="mnb-actions">
        {isLeft(row) && (
          <Action
            label={t('Wait for it')}
            title={t('Start its ranks once its hosts are there; this server does not wait for them now')}
            onRun={() => act('wait')}
          />
        )}
        {isOver(row) ? (
          <Action label={t('Dismiss')} title={t('Take it off this list')} onRun={() => act('cancel')} />
        ) : (
          <Action
            label={t('Cancel')}
            title={
              row.is_up ? t('End the mesh, and give its hosts back') : t('Give up its place in the queue')
            }
            onRun={() => act('cancel')}
          />
        )}
      </div>
    </div>
  );
}

/** Whether nothing of a request is left but its row. */
export function isOver(row: IAllocation): boolean {
  return row.state === 'ended' || row.state === 'failed';
}

/** Whether hosts come that this server doesn't wait for. */
function isLeft(row: IAllocation): boolean {
  return !row.is_up && !row.is_waited_for && !isOver(row) && row.state !== 'leaving';
}

/** "queued 3 min (Resources), 4 hosts, starts about 14:05"; "granted, 4 hosts, 1 h left". */
export function allocationText(row: IAllocation, now: number, t: Translate = untranslated): string {
  const age = duration(now - row.submitted_at);
  const why = row.reason ? ` (${row.reason})` : '';
  switch (row.state) {
    case 'queued':
      return [`${t('queued %1', age)}${why}`, hostsText(row.hosts, t), startText(row, t)]
        .filter(Boolean)
        .join(', ');
    case 'granted':
      return [
        `${row.is_up ? t('granted') : t('granted: hosts are joining')}${why}`,
        hostsText(String(row.num_hosts || row.hosts), t),
        leftText(row, now, t),
        costText(row.cost, t, now)
      ]
        .filter(Boolean)
        .join(', ');
    case 'leaving':
      return `${t('hosts are being given back')}${why}`;
    case 'ended':
      return `${t('ended')}${why}`;
    default:
      return t('not started');
  }
}

function startText({ starts_at }: IAllocation, t: Translate): string {
  if (starts_at === null) {
    return '';
  }
  const time = new Date(starts_at * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  return t('starts about %1', time);
}

function leftText({ ends_at }: IAllocation, now: number, t: Translate): string {
  return ends_at === null || ends_at <= now ? '' : t('%1 left', duration(ends_at - now));
}

/** What is said before hosts are given back: what is lost. */
export function cancelWarning(row: IAllocation, t: Translate = untranslated): string {
  if (row.is_up) {
    return t(
      "%1 is given back. The mesh's ranks end; what is in their memory is lost: variables, models, actors.",
      row.job
    );
  }
  return t('%1 is given up, and with it its place in the queue.', row.job);
}

const SECOND_MS = 1000;

/** The time in seconds since the epoch, renewed while it's shown. */
function useNow(isShown: boolean): number {
  const [now, setNow] = React.useState(() => Date.now() / 1000);
  React.useEffect(() => {
    if (!isShown) {
      return undefined;
    }
    setNow(Date.now() / 1000);
    const timer = setInterval(() => setNow(Date.now() / 1000), SECOND_MS);
    return () => clearInterval(timer);
  }, [isShown]);
  return now;
}
