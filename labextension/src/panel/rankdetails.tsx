import * as React from 'react';
import { Action, type Run } from './controls';
import type { IMeshStatus, IRank } from '../protocol';
import { useTranslate } from '../translate';
import { bytes, collectiveText, duration, percent, stateWord, transfersText, type Translate } from '../words';

export interface IRankDetailsProps {
  status: IMeshStatus;
  rank: number;
  run: Run;
}

/** What is known of one rank, and what can be done with it. */
export function RankDetails({ status, rank: number, run }: IRankDetailsProps): JSX.Element | null {
  const t = useTranslate();
  const now = useNow(1000);
  const rank = status.ranks.find(r => r.rank === number);
  if (!rank) {
    return null;
  }
  const act = (command: string) => run(command, { mesh: status.name, ranks: String(number) });
  return (
    <section className="mnb-rank" aria-label={t('Rank %1', number)}>
      <dl className="mnb-facts">
        {facts(status, rank, now, t).map(([name, value]) => (
          <React.Fragment key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </React.Fragment>
        ))}
      </dl>
      <div className="mnb-actions">
        <Action label={t('Logs')} onRun={() => act('monarch-nb:logs')} />
        <Action label={t('Stack')} onRun={() => act('monarch-nb:stacks')} />
        <Action label={t('Interrupt rank')} onRun={() => act('monarch-nb:interrupt')} />
      </div>
    </section>
  );
}

function facts(status: IMeshStatus, rank: IRank, now: number, t: Translate): [string, string][] {
  const gpuMemory = rank.gpu_memory_bytes === null ? '' : t('%1 on GPUs', bytes(rank.gpu_memory_bytes));
  const rows: [string, string][] = [
    [
      t('Rank'),
      `${rank.rank}, ${stateWord(rank.state, t)} ${t('for %1', duration(Math.max(0, now - rank.since)))}`
    ],
    [t('Why'), rank.reason],
    [t('Doing'), rank.doing],
    [t('At'), rank.line],
    [t('Collective'), waitingText(rank, now, t)],
    [t('Waiting'), rank.num_queued ? String(rank.num_queued) : ''],
    [t('Moved'), transfersText(rank.transfers, t)],
    [t('CPU'), rank.cpu_percent === null ? '' : percent(rank.cpu_percent)],
    [t('Memory'), [bytes(rank.memory_bytes), gpuMemory].filter(Boolean).join(', ')],
    [t('Where'), whereText(status, rank, t)],
    [t('Last line'), rank.last_line]
  ];
  return rows.filter(([, value]) => value);
}

/** The host has its own lines, below all ranks; where there's only one, nobody needs its name. */
function whereText({ hosts }: IMeshStatus, rank: IRank, t: Translate): string {
  const pid = t('pid %1', rank.pid);
  return hosts.length > 1 ? t('host %1, %2', rank.host, pid) : pid;
}

function waitingText({ collective }: IRank, now: number, t: Translate): string {
  return collective
    ? t('%1, for %2', collectiveText(collective), duration(Math.max(0, now - collective.since)))
    : '';
}

/** Return the time in seconds since the epoch, renewed every `interval` milliseconds. */
function useNow(interval: number): number {
  const [now, setNow] = React.useState(() => Date.now() / 1000);
  React.useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), interval);
    return () => clearInterval(timer);
  }, [interval]);
  return now;
}
