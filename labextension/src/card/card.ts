import { CardButtons } from './buttons';
import { CardDetails } from './details';
import { CardHosts } from './hosts';
import { element, setText } from './dom';
import { RankGrid } from './grid';
import type { IMeshStatus } from '../protocol';
import type { MeshStore } from '../transport/store';
import {
  countStates,
  duration,
  health,
  isNearlyUp,
  limitText,
  rankSet,
  rankText,
  shapeText,
  tally,
  untranslated
} from '../words';
import type { Translate } from '../words';

/** The actions on a mesh; each resolves with a message to show. */
export interface IActions {
  interrupt(ranks?: string): Promise<string>;
  heal(): Promise<string>;
  stop(): Promise<string>;
  stacks(ranks: string): Promise<string>;
  lastLines(rank: number): Promise<string>;
}

export interface ICardOptions {
  translate?: Translate;
}

/** A mesh in an output: its health, hosts, ranks, the selected rank, and the buttons of actions. */
export class MeshCard {
  readonly node = element('div', 'mnb-card');
  private readonly _t: Translate;
  private readonly _stop: () => void;
  private readonly _name = element('span', 'mnb-card-name');
  private readonly _health = element('span', 'mnb-card-health');
  private readonly _facts = element('div', 'mnb-card-facts');
  private readonly _shape = element('span');
  private readonly _tally = element('span');
  private readonly _lease = element('span');
  private readonly _limit = element('span');
  private readonly _ended = element('div', 'mnb-card-ended');
  private readonly _announcement = element('div', 'mnb-unseen');
  private readonly _hosts: CardHosts;
  private readonly _grid: RankGrid;
  private readonly _details: CardDetails;
  private readonly _buttons: CardButtons | null = null;
  private _lost: ReadonlySet<number> | null = null;

  /** @param actions null: a picture without buttons. */
  constructor(
    private readonly _store: MeshStore,
    actions: IActions | null,
    options: ICardOptions = {}
  ) {
    this._t = options.translate ?? untranslated;
    this._hosts = new CardHosts(_store, this._t);
    this._details = new CardDetails(_store, this._t, actions !== null);
    this._grid = new RankGrid(_store, { translate: this._t, onSelect: rank => this._select(rank) });
    if (actions) {
      this._buttons = new CardButtons(actions, this._t);
    }
    this._assemble();
    this._show(null);
    this._stop = _store.on(changed => this._show(changed));
  }

  dispose(): void {
    this._stop();
    this._grid.dispose();
    this._details.dispose();
    this._buttons?.dispose();
  }

  private _assemble(): void {
    const head = element('div', 'mnb-card-head');
    head.append(this._name, this._health);
    this._facts.append(this._shape, this._tally, this._lease, this._limit);
    const ranks = element('div', 'mnb-card-ranks');
    ranks.append(this._grid.node, this._details.node, this._details.hint);
    this._announcement.setAttribute('role', 'status');
    this._announcement.setAttribute('aria-live', 'polite');
    this._ended.hidden = true;
    this.node.setAttribute('role', 'group');
    this.node.append(head, this._facts, this._ended, this._hosts.node, ranks, this._announcement);
    if (this._buttons) {
      head.append(this._buttons.forMesh);
      this._details.node.append(this._buttons.forRank);
      this.node.append(this._buttons.answer);
    }
  }

  private _select(rank: number | null): void {
    this._details.rank = rank;
    this._buttons?.select(rank);
  }

  private _show(changed: ReadonlySet<number> | null): void {
    const { status, ended } = this._store;
    this.node.classList.toggle('mnb-ended', ended !== null);
    this._ended.hidden = ended === null;
    setText(this._ended, ended === null ? '' : ended || this._t('The mesh has ended.'));
    if (status) {
      this._showHead(status);
      this._hosts.show();
      this._announce(status);
      if (changed === null || ended !== null || changed.has(this._details.rank ?? -1)) {
        this._details.show();
      }
      this._buttons?.enable(ended === null, status);
    }
  }

  private _showHead(status: IMeshStatus): void {
    const t = this._t;
    this.node.setAttribute('aria-label', t('Mesh %1', status.name));
    setText(this._name, status.name);
    const how = this._store.ended === null ? health(status) : 'ended';
    const className = `mnb-card-health mnb-health-${how}`;
    if (this._health.className !== className) {
      this._health.className = className;
    }
    const words = { ok: t('ok'), busy: t('busy'), trouble: t('trouble'), ended: t('ended') };
    setText(this._health, how !== 'ended' && status.is_healing ? t('healing') : words[how]);
    setText(this._shape, shapeText(status.sizes));
    setText(this._tally, t('%1 ranks: %2', status.ranks.length, tally(countStates(status.ranks), t)));
    setText(this._lease, this._store.ended === null ? leaseText(status, t) : '');
    this._limit.classList.toggle('mnb-nearly-up', this._store.ended === null && isNearlyUp(status.ends_at));
    setText(this._limit, this._store.ended === null ? limitText(status, t) : '');
  }

  /** Announce lost ranks to screen readers, once each. */
  private _announce({ ranks }: IMeshStatus): void {
    const lost = ranks.filter(rank => rank.state === 'lost');
    const newlyLost = this._lost ? lost.filter(rank => !this._lost?.has(rank.rank)) : [];
    this._lost = new Set(lost.map(rank => rank.rank));
    if (newlyLost.length === 1) {
      setText(this._announcement, rankText(newlyLost[0], this._t));
    } else if (newlyLost.length > 1) {
      setText(
        this._announcement,
        this._t('ranks %1, lost: %2', rankSet(newlyLost.map(rank => rank.rank)), newlyLost[0].reason)
      );
    }
  }
}

function leaseText({ idle_timeout_s, lease_left_s }: IMeshStatus, t: Translate): string {
  if (idle_timeout_s === null) {
    return '';
  }
  return lease_left_s === null
    ? t('lease: %1', duration(idle_timeout_s))
    : t('ends in %1 if nobody comes', duration(lease_left_s));
}
