import { element, setAttribute, setText } from './dom';
import type { IGpu, IHost } from '../protocol';
import type { MeshStore } from '../transport/store';
import { bytes, differences, percent, stateWord, UNKNOWN } from '../words';
import type { Translate } from '../words';

const HIGH_PERCENT = 90;

/** The card's hosts: one line each, with their loads. */
export class CardHosts {
  readonly node = element('div', 'mnb-card-hosts');
  private readonly _body = element('tbody');
  private readonly _notes = element('div', 'mnb-card-host-notes');
  private readonly _lines = new Map<number, HostLine>();

  constructor(
    private readonly _store: MeshStore,
    private readonly _t: Translate
  ) {
    const head = element('tr');
    head.append(
      ...[_t('Host'), _t('CPU'), _t('Memory'), _t('GPUs')].map(title => {
        const cell = element('th', '', title);
        cell.scope = 'col';
        return cell;
      })
    );
    const top = element('thead');
    top.append(head);
    const table = element('table');
    table.append(top, this._body);
    this.node.append(table, this._notes);
    // Many hosts are scrolled, by keyboard too.
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _t('Hosts'));
  }

  /** Show the hosts as they are now. */
  show(): void {
    const hosts = this._store.status?.hosts ?? [];
    for (const host of hosts) {
      this._line(host.index).show(host);
    }
    if (this._lines.size > hosts.length) {
      const known = new Set(hosts.map(host => host.index));
      for (const [index, line] of this._lines) {
        if (!known.has(index)) {
          line.node.remove();
          this._lines.delete(index);
        }
      }
    }
    this._showNotes(hosts);
    this.node.hidden = hosts.length === 0;
    this.node.classList.toggle('mnb-no-gpus', !hosts.some(host => host.gpus.length > 0));
  }

  /** Show the differences between hosts and the notebook, equal ones merged. */
  private _showNotes(hosts: IHost[]): void {
    const lines = differences(hosts, this._t);
    setText(this._notes, lines.join('\n'));
    this._notes.hidden = lines.length === 0;
  }

  private _line(index: number): HostLine {
    let line = this._lines.get(index);
    if (!line) {
      line = new HostLine(this._t);
      this._lines.set(index, line);
      this._body.append(line.node);
    }
    return line;
  }
}

class HostLine {
  readonly node = element('tr');
  private readonly _name = element('span', 'mnb-ellipsis');
  private readonly _state = element('span', 'mnb-card-host-state');
  private readonly _cpu = new Meter();
  private readonly _memory = new Meter();
  private readonly _gpus = element('td', 'mnb-card-gpus');
  private _shown: IHost | null = null;

  constructor(private readonly _t: Translate) {
    const name = element('th');
    name.scope = 'row';
    const words = element('span', 'mnb-card-host-words');
    words.append(this._name, this._state);
    name.append(words);
    this.node.append(name, this._cpu.node, this._memory.node, this._gpus);
  }

  show(host: IHost): void {
    if (host === this._shown) {
      return;
    }
    this._shown = host;
    const t = this._t;
    setText(this._name, host.hostname);
    setAttribute(this._name, 'title', t('%1, %2 cores, pid %3', host.hostname, host.num_cores, host.pid));
    setText(this._state, host.state === 'up' ? '' : stateWord(host.state, t));
    this.node.className = `mnb-card-host-${host.state}`;
    this._cpu.show(host.cpu_percent, percent(host.cpu_percent), '');
    const { memory_used_bytes: used, memory_total_bytes: total } = host;
    this._memory.show(share(used, total), bytes(used), t('%1 of %2', bytes(used), bytes(total)));
    this._showGpus(host.gpus);
  }

  private _showGpus(gpus: IGpu[]): void {
    while (this._gpus.childElementCount > gpus.length) {
      this._gpus.lastElementChild?.remove();
    }
    while (this._gpus.childElementCount < gpus.length) {
      const bar = element('span', 'mnb-card-gpu');
      bar.setAttribute('role', 'img');
      bar.append(element('span'));
      this._gpus.append(bar);
    }
    gpus.forEach((gpu, i) => this._showGpu(this._gpus.children[i] as HTMLElement, gpu));
  }

  private _showGpu(bar: HTMLElement, gpu: IGpu): void {
    const text = this._t(
      'GPU %1, %2: %3, memory %4 of %5',
      gpu.index,
      gpu.name,
      percent(gpu.utilization_percent),
      bytes(gpu.memory_used_bytes),
      bytes(gpu.memory_total_bytes)
    );
    setAttribute(bar, 'title', text);
    setAttribute(bar, 'aria-label', text);
    fill(bar, 'height', gpu.utilization_percent);
  }
}

/** A bar with its number. */
class Meter {
  readonly node = element('td', 'mnb-card-meter');
  private readonly _bar = element('span', 'mnb-card-bar');
  private readonly _number = element('span', 'mnb-card-number', UNKNOWN);

  constructor() {
    this._bar.setAttribute('aria-hidden', 'true');
    this._bar.append(element('span'));
    this.node.append(this._bar, this._number);
  }

  show(value: number | null, text: string, title: string): void {
    fill(this._bar, 'width', value);
    setText(this._number, text);
    setAttribute(this.node, 'title', title);
  }
}

/** Set the fill level by a transform: a new width or height would cause a layout of the page. */
function fill(bar: HTMLElement, side: 'width' | 'height', value: number | null): void {
  const part = Math.min(Math.max(value ?? 0, 0), 100) / 100;
  const inner = bar.firstElementChild as HTMLElement;
  const transform = `scale${side === 'width' ? 'X' : 'Y'}(${Number(part.toFixed(2))})`;
  if (inner.style.transform !== transform) {
    inner.style.transform = transform;
  }
  bar.classList.toggle('mnb-high', (value ?? 0) >= HIGH_PERCENT);
}

function share(used: number | null, total: number | null): number | null {
  return used === null || !total ? null : (100 * used) / total;
}
