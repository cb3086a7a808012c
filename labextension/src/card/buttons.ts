import type { IActions } from './card';
import { element, setText } from './dom';
import type { IMeshStatus } from '../protocol';
import type { Translate } from '../words';

/** Time within which a second click on Stop confirms the first. */
const CONFIRM_MS = 4000;

/** The card's buttons, with the result of the last action. */
export class CardButtons {
  readonly forMesh = element('div', 'mnb-card-buttons');
  readonly forRank = element('div', 'mnb-card-buttons');
  /** The last answer; it stays until the next one. */
  readonly answer = element('div', 'mnb-card-answer');
  private readonly _answerTitle = element('div', 'mnb-card-answer-title');
  private readonly _answerText = element('pre');
  private readonly _interrupt: HTMLButtonElement;
  private readonly _heal: HTMLButtonElement;
  private readonly _stop: HTMLButtonElement;
  private _rank: number | null = null;
  private _confirming: ReturnType<typeof setTimeout> | null = null;
  private _numAsked = 0;
  private _isDisposed = false;

  constructor(
    private readonly _actions: IActions,
    private readonly _t: Translate
  ) {
    this._interrupt = this._button(_t('Interrupt'), _t('Interrupt the cell that runs'), () =>
      this._run(_t('Interrupt'), () => _actions.interrupt())
    );
    this._heal = this._button(_t('Heal'), _t('Put lost ranks back'), () =>
      this._run(_t('Heal'), () => _actions.heal())
    );
    this._stop = this._button(_t('Stop'), _t('Stop the mesh: its ranks and what they hold are gone'), () =>
      this._onStop()
    );
    this._stop.classList.add('mnb-card-stop');
    this.forMesh.append(this._interrupt, this._heal, this._stop);
    this.forRank.append(
      this._button(_t('Stack'), _t('Where its threads stand'), () => this._ask('stack')),
      this._button(_t('Last lines'), _t('What it has written last'), () => this._ask('lines'))
    );
    const close = this._button('\u00d7', _t('Close'), () => this._close());
    close.setAttribute('aria-label', _t('Close'));
    const head = element('div', 'mnb-card-answer-head');
    head.append(this._answerTitle, close);
    this._answerText.tabIndex = 0;
    this.answer.append(head, this._answerText);
    this.answer.hidden = true;
    this.answer.setAttribute('role', 'status');
  }

  /** Set the rank of the rank's buttons. */
  select(rank: number | null): void {
    this._rank = rank;
  }

  /** Enable what makes sense. */
  enable(isLive: boolean, status: IMeshStatus): void {
    this._interrupt.disabled = this._stop.disabled = !isLive;
    const isLost =
      status.ranks.some(rank => rank.state === 'lost') || status.hosts.some(host => host.state === 'lost');
    this._heal.disabled = !isLive || !isLost || status.is_healing;
    for (const button of this.forRank.querySelectorAll('button')) {
      button.disabled = !isLive;
    }
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._confirming ?? undefined);
  }

  private _button(label: string, title: string, onClick: () => void): HTMLButtonElement {
    const button = element('button', 'mnb-card-button', label);
    button.type = 'button';
    button.title = title;
    button.addEventListener('click', onClick);
    return button;
  }

  private _ask(what: 'stack' | 'lines'): void {
    const rank = this._rank;
    if (rank === null) {
      return;
    }
    if (what === 'stack') {
      this._run(this._t('Stack of rank %1', rank), () => this._actions.stacks(String(rank)));
    } else {
      const nothing = this._t('It has written nothing.');
      this._run(this._t('Last lines of rank %1', rank), () => this._actions.lastLines(rank), nothing);
    }
  }

  private _onStop(): void {
    if (this._confirming === null) {
      setText(this._stop, this._t('Really?'));
      this._stop.classList.add('mnb-sure');
      this._confirming = setTimeout(() => this._calm(), CONFIRM_MS);
      return;
    }
    this._calm();
    this._run(this._t('Stop'), () => this._actions.stop());
  }

  private _calm(): void {
    clearTimeout(this._confirming ?? undefined);
    this._confirming = null;
    setText(this._stop, this._t('Stop'));
    this._stop.classList.remove('mnb-sure');
  }

  private _run(title: string, action: () => Promise<string>, whenEmpty = this._t('Done.')): void {
    const number = ++this._numAsked;
    const show = (text: string, isError: boolean): void => {
      if (number === this._numAsked && !this._isDisposed) {
        this._show(title, text, isError);
      }
    };
    this._show(title, this._t('Asked; waiting for an answer ...'), false);
    action().then(
      text => show(text || whenEmpty, false),
      (error: unknown) => show(error instanceof Error ? error.message : String(error), true)
    );
  }

  private _show(title: string, text: string, isError: boolean): void {
    setText(this._answerTitle, title);
    setText(this._answerText, text);
    this.answer.classList.toggle('mnb-error', isError);
    this.answer.hidden = false;
  }

  private _close(): void {
    this._numAsked += 1;
    this.answer.hidden = true;
  }
}
