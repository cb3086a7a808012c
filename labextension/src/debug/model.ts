import { foldPlaces, foldVariables, parseRanks, type IPlace, type IVariable } from './fold';
import { messageOf } from '../errors';
import { Notifier } from '../notifier';
import type { IDebugAnswers, IStop } from '../protocol';
import { rankSet, untranslated, type Translate } from '../words';

/** The source of stops, and the receiver of lines. */
export interface IDebugSource {
  send(ids: number[] | null, line: string): Promise<IDebugAnswers>;
  watch(onStops: (stops: IStop[]) => void, onEnd: (reason: string) => void): () => void;
}

/** An entry of the transcript: a sent line, answers of ranks, or a message of the debugger itself. */
export interface IEntry {
  readonly key: number;
  readonly kind: 'line' | 'answer' | 'note';
  readonly ranks: string;
  readonly text: string;
}

export const MAX_ENTRIES = 500;
const MAX_HISTORY = 200;
const VARIABLES = '!!vars';
const QUIT = new Set(['quit', 'q', 'exit']);

/** A session with the debugger of one mesh: the stops, the focus, and the transcript. */
export class DebugModel extends Notifier {
  private _stops: readonly IStop[] = [];
  private _places: readonly IPlace[] = [];
  /** Ids; null: all. */
  private _focus: ReadonlySet<number> | null = null;
  private _shown = '';
  private _entries: readonly IEntry[] = [];
  private _variables: readonly IVariable[] = [];
  private _isBusy = false;
  private _isHeard = false;
  private _ended = '';
  private _nextKey = 0;
  private _history: string[] = [];
  private _at = 0;
  private _draft = '';
  private _asked = '';
  private _isAsking = false;
  private _stop: (() => void) | null = null;
  private _isDisposed = false;

  constructor(
    private readonly _source: IDebugSource,
    private readonly _translate: Translate = untranslated
  ) {
    super();
  }

  /** Places where ranks are stopped. */
  get places(): readonly IPlace[] {
    return this._places;
  }

  /** Whether the stops are known yet. */
  get isHeard(): boolean {
    return this._isHeard;
  }

  get entries(): readonly IEntry[] {
    return this._entries;
  }

  get variables(): readonly IVariable[] {
    return this._variables;
  }

  /** Whether a line is on its way. */
  get isBusy(): boolean {
    return this._isBusy;
  }

  /** Why the session is over; empty if it isn't. */
  get ended(): string {
    return this._ended;
  }

  /** The stops that lines go to. */
  get focused(): readonly IStop[] {
    const focus = this._focus;
    return focus ? this._stops.filter(stop => focus.has(stop.id)) : this._stops;
  }

  /** The stops that can take a line. */
  get ready(): readonly IStop[] {
    return this.focused.filter(stop => stop.state === 'stopped');
  }

  /** The stop whose source is shown: the one chosen, or the first of the focus. */
  get shown(): IStop | null {
    const place = this._places.find(({ key }) => key === this._shown);
    const inFocus = place?.stops.find(stop => this.focused.includes(stop));
    return inFocus ?? this.ready[0] ?? this.focused[0] ?? null;
  }

  /** Whether all, some or none of a place are in the focus. */
  isFocused({ stops }: IPlace): 'all' | 'some' | 'none' {
    const num = stops.filter(stop => this.focused.includes(stop)).length;
    return num === stops.length ? 'all' : num ? 'some' : 'none';
  }

  /** Whether the debugger is visible; otherwise it watches nothing. */
  set isActive(value: boolean) {
    if (value && !this._stop && !this._ended && !this._isDisposed) {
      this._stop = this._source.watch(
        stops => this._take(stops),
        reason => this._end(reason)
      );
    } else if (!value) {
      this._stop?.();
      this._stop = null;
    }
  }

  /** Send lines to all stops, including later ones. */
  focusAll(): void {
    this._setFocus(null);
  }

  /** Send lines to one place only, and show it. */
  focusOnly(place: IPlace): void {
    this._shown = place.key;
    this._setFocus(new Set(place.stops.map(stop => stop.id)));
  }

  /** Add a place to the focus, or remove it; the last one stays. */
  toggle(place: IPlace): void {
    const focus = new Set(this.focused.map(stop => stop.id));
    const isIn = this.isFocused(place) === 'all';
    place.stops.forEach(stop => (isIn ? focus.delete(stop.id) : focus.add(stop.id)));
    if (focus.size) {
      this._setFocus(focus.size === this._stops.length ? null : focus);
    }
  }

  /**
   * Execute a typed line: a line for pdb, or a command of the debugger itself. An empty line repeats the
   * last one, as in pdb.
   */
  async enter(typed: string): Promise<void> {
    const line = typed.trim() ? typed.trimEnd() : (this._history.at(-1) ?? '');
    if (!line || this._isBusy || this._ended) {
      return;
    }
    this._remember(line);
    const [verb, ...words] = line.trim().split(/\s+/);
    if (verb === 'focus') {
      this._focusOn(words.join(' '));
    } else if (verb === 'detach' && !words.length) {
      this._say(this._translate('The ranks stay where they are when this tab is closed.'));
    } else if (QUIT.has(verb) && !words.length) {
      await this.send('quit', null);
    } else {
      await this.send(line);
    }
  }

  /** Send a line to the focus, or to other stops; null: to all stops. */
  async send(line: string, to: readonly IStop[] | null = this.ready): Promise<void> {
    const stops = to ?? this._stops;
    if (!stops.length) {
      this._say(this._translate('No rank of the focus waits for a line.'));
      return;
    }
    this._isBusy = true;
    this._add('line', ranksOf(stops), line);
    try {
      const found = await this._source.send(to && to.map(stop => stop.id), line);
      found.answers.forEach(({ ranks, text }) => text && this._add('answer', ranks, text));
      this._tellLeft(found);
      this._asked = '';
      this._take(found.stops);
    } catch (error) {
      this._say(messageOf(error));
    } finally {
      this._isBusy = false;
      this.changed();
    }
  }

  /** Return the line typed before the one at hand; the one at hand is kept. */
  previous(current: string): string {
    if (this._at === this._history.length) {
      this._draft = current;
    }
    this._at = Math.max(0, this._at - 1);
    return this._history[this._at] ?? this._draft;
  }

  /** Return the line typed after the one at hand. */
  next(current: string): string {
    if (this._at >= this._history.length) {
      return current;
    }
    this._at += 1;
    return this._history[this._at] ?? this._draft;
  }

  dispose(): void {
    this._isDisposed = true;
    this.isActive = false;
  }

  private _take(stops: readonly IStop[]): void {
    this._isHeard = true;
    this._stops = stops;
    this._places = foldPlaces(stops);
    const focus = this._focus;
    if (focus && !stops.some(stop => focus.has(stop.id))) {
      this._focus = null;
    }
    this.changed();
    void this._askVariables();
  }

  private _end(reason: string): void {
    this._stop = null;
    this._ended = reason;
    this._take([]);
  }

  private _setFocus(focus: ReadonlySet<number> | null): void {
    this._focus = focus;
    this.changed();
    void this._askVariables();
  }

  private _focusOn(text: string): void {
    if (text === 'all') {
      this.focusAll();
      return;
    }
    const ranks = parseRanks(text);
    const stops = this._stops.filter(stop => ranks?.has(stop.rank));
    if (!ranks) {
      this._say(this._translate('Expected: focus RANKS, as in focus 0-3,7 or focus all'));
    } else if (!stops.length) {
      this._say(this._translate('None of the ranks %1 stands in the debugger.', text));
    } else {
      this._setFocus(new Set(stops.map(stop => stop.id)));
    }
  }

  /** Request variables if the stops have changed since the last request. One request at a time. */
  private async _askVariables(): Promise<void> {
    const stops = this.ready.filter(stop => stop.mode !== 'interact');
    const about = JSON.stringify(stops.map(({ id, file, line, function: name }) => [id, file, line, name]));
    if (about === this._asked || this._isAsking || this._isDisposed) {
      return;
    }
    this._asked = about;
    if (!stops.length) {
      this._variables = [];
      this.changed();
      return;
    }
    this._isAsking = true;
    const rankOf = new Map(stops.map(stop => [stop.id, stop.rank]));
    try {
      const found = await this._source.send(
        stops.map(stop => stop.id),
        VARIABLES
      );
      this._variables = foldVariables(found, ids => ids.flatMap(id => rankOf.get(id) ?? []));
    } catch {
      // A thread with a line under way answers no other one; the next stop requests again.
      this._variables = [];
    }
    this._isAsking = false;
    this.changed();
    void this._askVariables();
  }

  private _tellLeft({ left = [], stops }: IDebugAnswers): void {
    const ranks = stops.filter(stop => left.includes(stop.id));
    if (ranks.length) {
      this._say(this._translate('Ranks %1 run on; they are shown when they stop again.', ranksOf(ranks)));
    }
  }

  private _remember(line: string): void {
    if (line !== this._history.at(-1)) {
      this._history = [...this._history, line].slice(-MAX_HISTORY);
    }
    this._at = this._history.length;
    this._draft = '';
  }

  private _say(text: string): void {
    this._add('note', '', text);
  }

  private _add(kind: IEntry['kind'], ranks: string, text: string): void {
    const entry = { key: this._nextKey++, kind, ranks, text };
    this._entries = [...this._entries, entry].slice(-MAX_ENTRIES);
    this.changed();
  }
}

function ranksOf(stops: readonly IStop[]): string {
  return rankSet(stops.map(stop => stop.rank));
}
