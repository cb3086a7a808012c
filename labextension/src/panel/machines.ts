import type { IHost } from '../protocol';

/**
 * Put hosts together that are processes on one machine: its processors, memory and GPUs are shown once.
 *
 * Hosts that are gone stand by themselves, as nothing is known of them any more.
 */
export function machines(hosts: readonly IHost[]): IHost[][] {
  const found = new Map<string, IHost[]>();
  for (const host of hosts) {
    const key = host.state === 'up' && host.machine ? host.machine : `host ${host.index}`;
    found.set(key, [...(found.get(key) ?? []), host]);
  }
  return [...found.values()];
}
