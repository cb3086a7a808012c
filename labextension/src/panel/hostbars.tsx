import * as React from 'react';
import type { IGpu, IHost } from '../protocol';
import { Sparkline } from './sparkline';
import { useTranslate } from '../translate';
import { bytes, differences, duration, percent as percentText, rankSet, stateWord } from '../words';

export interface IHostBarsProps {
  /** Those on this machine; one, unless several processes stand for hosts. */
  hosts: IHost[];
  /** Whether the mesh has no others: then nobody needs their numbers. */
  isOnly: boolean;
}

/**
 * A machine: its processors, memory and GPUs, each with the last minutes. The store replaces hosts and never
 * changes them.
 */
export const HostBars = React.memo(function HostBars({ hosts, isOnly }: IHostBarsProps): JSX.Element {
  const t = useTranslate();
  const host = hosts[0];
  const numbers = rankSet(hosts.map(({ index }) => index));
  const minutes = duration(host.history.interval_s * Math.max(host.history.cpu_percent.length, 1));
  const memory = share(host.memory_used_bytes, host.memory_total_bytes);
  return (
    <div className={`mnb-host mnb-host-${host.state}`}>
      <div className="mnb-host-name">
        <span className="mnb-ellipsis" title={host.hostname}>
          {host.hostname}
        </span>
        {(!isOnly || hosts.length > 1) && (
          <span className="mnb-host-state">
            {hosts.length > 1 ? t('hosts %1', numbers) : t('host %1', numbers)}
          </span>
        )}
        {host.state !== 'up' && <span className="mnb-host-state">{stateWord(host.state, t)}</span>}
      </div>
      {differences(hosts, t).map(line => (
        <div key={line} className="mnb-host-differs">
          {line}
        </div>
      ))}
      <Bar
        label={t('CPU')}
        percent={host.cpu_percent}
        text={percentText(host.cpu_percent)}
        title={t('%1: CPU %2 of %3 cores', host.hostname, percentText(host.cpu_percent), host.num_cores)}
        history={host.history.cpu_percent}
        historyLabel={t('CPU, the last %1', minutes)}
      />
      <Bar
        label={t('Memory')}
        percent={memory}
        text={bytes(host.memory_used_bytes)}
        title={t(
          '%1: %2 of %3',
          host.hostname,
          bytes(host.memory_used_bytes),
          bytes(host.memory_total_bytes)
        )}
        history={host.history.memory_percent}
        historyLabel={t('Memory, the last %1', minutes)}
      />
      {host.gpus.length > 0 && (
        <Sum
          gpus={host.gpus}
          history={host.history.gpu_percent}
          historyLabel={t('GPUs, the last %1', minutes)}
        />
      )}
      {host.gpus.map(gpu => (
        <GpuBar key={gpu.index} gpu={gpu} />
      ))}
    </div>
  );
}, isSame);

/** The list is made anew for each picture; the hosts in it are not. */
function isSame(old: IHostBarsProps, now: IHostBarsProps): boolean {
  return (
    old.isOnly === now.isOnly &&
    old.hosts.length === now.hosts.length &&
    old.hosts.every((host, i) => host === now.hosts[i])
  );
}

interface ISumProps {
  gpus: IGpu[];
  history: (number | null)[];
  historyLabel: string;
}

/** All GPUs of a host in one line, as the history has only their mean. */
function Sum({ gpus, history, historyLabel }: ISumProps): JSX.Element {
  const t = useTranslate();
  const known = gpus.map(gpu => gpu.utilization_percent).filter((value): value is number => value !== null);
  const mean = known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  return (
    <Bar
      label={gpus.length === 1 ? t('GPU') : t('%1 GPUs', gpus.length)}
      percent={mean}
      text={percentText(mean)}
      title={t('Utilisation, mean of %1', gpus.length)}
      history={history}
      historyLabel={historyLabel}
    />
  );
}

function GpuBar({ gpu }: { gpu: IGpu }): JSX.Element {
  const t = useTranslate();
  const memory = `${bytes(gpu.memory_used_bytes)} / ${bytes(gpu.memory_total_bytes)}`;
  const heat = gpu.temperature_c === null ? '' : t('%1 °C', Math.round(gpu.temperature_c));
  const who = gpu.processes.map(p => (p.rank === null ? t('pid %1', p.pid) : t('rank %1', p.rank)));
  const title = [t('GPU %1: %2', gpu.index, gpu.name), memory, heat, who.join(', ')]
    .filter(Boolean)
    .join('\n');
  return (
    <div className="mnb-gpu" title={title}>
      <span className="mnb-gpu-index">{gpu.index}</span>
      <Meter percent={gpu.utilization_percent} label={t('GPU %1, utilisation', gpu.index)} />
      <span className="mnb-number">{percentText(gpu.utilization_percent)}</span>
      <Meter
        percent={share(gpu.memory_used_bytes, gpu.memory_total_bytes)}
        label={t('GPU %1, memory', gpu.index)}
        kind="memory"
      />
      <span className="mnb-number mnb-gpu-memory">{bytes(gpu.memory_used_bytes)}</span>
      <span className="mnb-number mnb-gpu-heat">{heat}</span>
    </div>
  );
}

interface IBarProps {
  label: string;
  percent: number | null;
  text: string;
  title: string;
  history: (number | null)[];
  historyLabel: string;
}

function Bar({ label, percent, text, title, history, historyLabel }: IBarProps): JSX.Element {
  return (
    <div className="mnb-host-bar" title={title}>
      <span className="mnb-host-bar-label">{label}</span>
      <Meter percent={percent} label={title} />
      <span className="mnb-number">{text}</span>
      <Sparkline values={history} label={historyLabel} />
    </div>
  );
}

function Meter({
  percent,
  label,
  kind
}: {
  percent: number | null;
  label: string;
  kind?: string;
}): JSX.Element {
  const value = percent === null ? 0 : Math.min(100, Math.max(0, percent));
  return (
    <span
      className={`mnb-meter${kind ? ` mnb-meter-${kind}` : ''}${value >= 90 ? ' mnb-mod-high' : ''}`}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(value)}
      aria-valuetext={percentText(percent)}
    >
      <span style={{ width: `${value}%` }} />
    </span>
  );
}

function share(used: number | null, total: number | null): number | null {
  return used === null || !total ? null : (100 * used) / total;
}
