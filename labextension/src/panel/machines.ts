import type { IHost } from '../protocol';

/**
 * Put hosts together that are processes on one machine: its processors, memory and GPUs are shown once.
 *
 * Hosts that are gone stand by themselves, as nothing is known of them any more.
 */
export function machines(hosts: readonly IHost[]): IHost[][] {
  const found = new Map<string, IHost[]>();
  for (const host of hosts) {
    const isUp = host.state === 'up' && host.memory_total_bytes !== null;
    const key = isUp ? `${host.hostname} ${host.num_cores} ${host.memory_total_bytes}` : `host ${host.index}`;
    found.set(key, [...(found.get(key) ?? []), host]);
  }
  return [...found.values()];
}
