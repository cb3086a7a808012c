import { messageOf } from '../errors';
import { Notifier } from '../notifier';
import type { ILogLine, ILogPage } from '../protocol';

/** Lines that are displayed and dropped as a unit. */
export interface ISegment {
  readonly key: number;
  /** Position of its beginning; null: the beginning of the output. */
  readonly start: number | null;
  readonly lines: readonly ILogLine[];
}

/** The source of lines: pages from the server, and new lines from a position on. */
export interface ILogSource {
  page(ranks: string, grep: string, before: number | null): Promise<ILogPage>;
  follow(
    ranks: string,
    grep: string,
    after: number,
    onLines: (lines: ILogLine[], after: number) => void,
    onEnd: (reason: string) => void
  ): () => void;
}

/** Maximum number of lines in memory, and displayed. */
const MAX_LINES = 20_000;
const SEGMENT_LINES = 250;

/**
 * A window onto the output of ranks: it grows upwards by pages and downwards by following.
 *
 * Lines carry no positions, pages do. So lines are held in segments, each of which knows where it begins, and
 * only whole segments are dropped: then what was dropped can be read again by its position.
 */
export class LogModel extends Notifier {
  private _segments: ISegment[] = [];
  private _numLines = 0;
  private _after: number | null = null;
  private _isLoading = false;
  private _problem = '';
  private _ended = '';
  private _isFollowing = true;
  private _isActive = true;
  private _isCutAbove = false;
  private _isCutBelow = false;
  private _ranks: string;
  private _grep = '';
  private _nextKey = 0;
  /** Number of the query: answers to earlier ones are ignored. */
  private _query = 0;
  private _stop: (() => void) | null = null;

  constructor(
    ranks: string,
    private readonly _source: ILogSource,
    private readonly _maxLines = MAX_LINES
  ) {
    super();
    this._ranks = ranks;
  }

  get segments(): readonly ISegment[] {
    return this._segments;
  }

  get numLines(): number {
    return this._numLines;
  }

  get isLoading(): boolean {
    return this._isLoading;
  }

  /** Why there are no lines, or no more: the server's message. */
  get problem(): string {
    return this._problem;
  }

  /** Why no more lines will come; empty if they may. */
  get ended(): string {
    return this._ended;
  }

  get ranks(): string {
    return this._ranks;
  }

  get grep(): string {
    return this._grep;
  }

  /** Whether new lines are displayed as they arrive. */
  get isFollowing(): boolean {
    return this._isFollowing;
  }

  set isFollowing(value: boolean) {
    if (value === this._isFollowing) {
      return;
    }
    this._isFollowing = value;
    if (!value) {
      this._unfollow();
    } else if (this._isCutBelow) {
      void this.load();
    } else {
      this._follow();
    }
    this.changed();
  }

  /** Whether there are lines above that are not held. */
  get hasOlder(): boolean {
    return this._segments.length > 0 && this._segments[0].start !== null;
  }

  /** Whether lines were dropped above, as there were too many. */
  get isCutAbove(): boolean {
    return this._isCutAbove && this.hasOlder;
  }

  /** Whether lines were dropped below, for older ones. */
  get isCutBelow(): boolean {
    return this._isCutBelow;
  }

  /** Read the last page of a query; then follow. */
  async load(ranks = this._ranks, grep = this._grep): Promise<void> {
    this._unfollow();
    const query = ++this._query;
    [this._ranks, this._grep] = [ranks, grep];
    [this._segments, this._numLines, this._after] = [[], 0, null];
    [this._isCutAbove, this._isCutBelow, this._ended] = [false, false, ''];
    const page = await this._read(query, null);
    if (page) {
      this._after = page.after;
      this._prepend(page);
      this._follow();
      this.changed();
    }
  }

  /** Read the page above. */
  async older(): Promise<void> {
    if (this._isLoading || !this.hasOlder) {
      return;
    }
    const page = await this._read(this._query, this._segments[0].start);
    if (page) {
      this._prepend(page);
      this._cutBelow();
      this.changed();
    }
  }

  /** Whether the log is visible; otherwise it isn't followed, and later continues at the same position. */
  set isActive(value: boolean) {
    this._isActive = value;
    if (value) {
      this._follow();
    } else {
      this._unfollow();
    }
  }

  dispose(): void {
    this._query += 1;
    this._unfollow();
  }

  private async _read(query: number, before: number | null): Promise<ILogPage | null> {
    this._isLoading = true;
    this._problem = '';
    this.changed();
    let page: ILogPage | null = null;
    let problem = '';
    try {
      page = await this._source.page(this._ranks, this._grep, before);
    } catch (error) {
      problem = messageOf(error);
    }
    if (query !== this._query) {
      return null;
    }
    this._isLoading = false;
    this._problem = problem;
    this.changed();
    return page;
  }

  private _follow(): void {
    if (
      this._stop ||
      this._after === null ||
      !this._isFollowing ||
      !this._isActive ||
      this._ended ||
      this._isCutBelow
    ) {
      return;
    }
    this._stop = this._source.follow(
      this._ranks,
      this._grep,
      this._after,
      (lines, after) => this._append(lines, after),
      reason => this._end(reason)
    );
  }

  private _unfollow(): void {
    this._stop?.();
    this._stop = null;
  }

  private _end(reason: string): void {
    this._unfollow();
    this._ended = reason || 'ended';
    this.changed();
  }

  private _prepend(page: ILogPage): void {
    if (page.lines.length || !this._segments.length) {
      this._segments = [{ key: this._nextKey++, start: page.before, lines: page.lines }, ...this._segments];
    } else {
      // An empty page (all of it was filtered out) only tells how far up has been read.
      this._segments = [{ ...this._segments[0], start: page.before }, ...this._segments.slice(1)];
    }
    this._numLines += page.lines.length;
  }

  private _append(lines: ILogLine[], after: number): void {
    const start = this._after;
    this._after = after;
    if (!lines.length) {
      return;
    }
    const last = this._segments.at(-1);
    if (last && last.lines.length + lines.length <= SEGMENT_LINES) {
      this._segments = [...this._segments.slice(0, -1), { ...last, lines: [...last.lines, ...lines] }];
    } else {
      this._segments = [...this._segments, { key: this._nextKey++, start, lines }];
    }
    this._numLines += lines.length;
    this._cutAbove();
    this.changed();
  }

  private _cutAbove(): void {
    let first = 0;
    while (this._numLines > this._maxLines && first < this._segments.length - 1) {
      this._numLines -= this._segments[first++].lines.length;
      this._isCutAbove = true;
    }
    this._segments = this._segments.slice(first);
    const [only] = this._segments;
    if (this._numLines > this._maxLines && only) {
      this._segments = [{ ...only, lines: only.lines.slice(-this._maxLines) }];
      this._numLines = this._maxLines;
    }
  }

  /** Stop following while the user reads far back: new lines would push out the ones being read. */
  private _cutBelow(): void {
    while (this._numLines > this._maxLines && this._segments.length > 1) {
      this._numLines -= this._segments[this._segments.length - 1].lines.length;
      this._segments = this._segments.slice(0, -1);
      this._isCutBelow = true;
    }
    if (this._isCutBelow) {
      this._unfollow();
      this._isFollowing = false;
    }
  }
}
