import * as React from 'react';
import { isCount } from './start';
import { useTranslate } from '../translate';

export interface IResizeFormProps {
  sizes: [string, number][];
  resize: (sizes: [string, number][]) => Promise<unknown>;
  onClose: () => void;
}

/** One number per dimension. */
export function ResizeForm({ sizes, resize, onClose }: IResizeFormProps): JSX.Element {
  const t = useTranslate();
  const id = React.useId();
  const [texts, setTexts] = React.useState(() => sizes.map(([, size]) => String(size)));
  const [isBusy, setBusy] = React.useState(false);
  const isSame = sizes.every(([, size], i) => Number(texts[i]) === size);
  const isWrong = !texts.every(isCount);
  const submit = async (event: React.FormEvent) => {
    event.preventDefault();
    if (isWrong || isSame || isBusy) {
      return;
    }
    setBusy(true);
    try {
      await resize(sizes.map(([name], i) => [name, Number(texts[i])]));
    } finally {
      onClose();
    }
  };
  return (
    <form
      className="mnb-form mnb-resize"
      onSubmit={event => void submit(event)}
      aria-label={t('Resize')}
      noValidate
    >
      <fieldset disabled={isBusy}>
        <div className="mnb-form-pair">
          {sizes.map(([name], i) => (
            <div className="mnb-form-row" key={name}>
              <label htmlFor={`${id}-${i}`}>{name}</label>
              <input
                id={`${id}-${i}`}
                className="mnb-input"
                inputMode="numeric"
                value={texts[i]}
                aria-invalid={isCount(texts[i]) ? undefined : true}
                onChange={event => setTexts(texts.map((text, k) => (k === i ? event.target.value : text)))}
              />
            </div>
          ))}
        </div>
        {isWrong && <p className="mnb-problem">{t('A size is a whole number, 1 or more')}</p>}
        <div className="mnb-actions">
          <button type="submit" className="mnb-button mnb-mod-accept" disabled={isWrong || isSame}>
            {isBusy ? t('Resizing ...') : t('Resize')}
          </button>
          <button type="button" className="mnb-button" onClick={onClose}>
            {t('Cancel')}
          </button>
        </div>
      </fieldset>
    </form>
  );
}
