import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal, type ISignal } from '@lumino/signaling';
import * as React from 'react';
import { statusText } from './health';
import type { MeshesModel } from './model';
import type { Translate } from '../words';

/** One mesh in the status bar: the one last used in the panel, or the only one. */
export class MeshStatusItem extends ReactWidget {
  private readonly _activeStateChanged = new Signal<this, void>(this);
  private readonly _off: () => void;
  private _unwatch: (() => void) | null = null;
  private _text = '';

  constructor(
    private readonly _model: MeshesModel,
    private readonly _translate: Translate,
    private readonly _open: () => void
  ) {
    super();
    this.addClass('mnb-status');
    this._off = _model.on(() => this._renew());
  }

  /** Whether there's something to show. */
  get isActive(): boolean {
    return this._text !== '';
  }

  /** Emitted when it appears or disappears. */
  get activeStateChanged(): ISignal<this, void> {
    return this._activeStateChanged;
  }

  /** Whether people want it; if not, nothing is watched for it. */
  set isEnabled(value: boolean) {
    if (value && !this._unwatch) {
      this._unwatch = this._model.watch();
    } else if (!value && this._unwatch) {
      this._unwatch();
      this._unwatch = null;
    }
    this._renew();
  }

  override dispose(): void {
    this._off();
    this.isEnabled = false;
    super.dispose();
  }

  protected override render(): JSX.Element {
    return (
      <StatusButton text={this._text} title={this._translate('Open the Mesh panel')} open={this._open} />
    );
  }

  private _renew(): void {
    const mesh = this._unwatch ? this._model.current : null;
    const text = mesh ? statusText(mesh, this._translate) : '';
    if (text === this._text) {
      return;
    }
    this._text = text;
    this._activeStateChanged.emit();
    this.update();
  }
}

function StatusButton({ text, title, open }: { text: string; title: string; open: () => void }): JSX.Element {
  return (
    <button type="button" className="mnb-status-button" title={title} onClick={open}>
      {text}
    </button>
  );
}
