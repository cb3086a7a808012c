import * as React from 'react';
import { placeText, whoText, type IPlace } from './fold';
import type { DebugModel } from './model';
import { useTranslate } from '../translate';

/** The places where ranks are stopped. A checkbox adds a place to the focus; a click focuses it alone. */
export function Places({ model }: { model: DebugModel }): JSX.Element {
  const t = useTranslate();
  const { places } = model;
  const isAll = places.every(place => model.isFocused(place) === 'all');
  return (
    <section className="mnb-debug-side" aria-label={t('Places')}>
      <div className="mnb-debug-head">
        <h3>{t('Places')}</h3>
        {places.length > 1 && (
          <button type="button" className="mnb-button" disabled={isAll} onClick={() => model.focusAll()}>
            {t('All')}
          </button>
        )}
      </div>
      {places.length ? (
        <ul className="mnb-debug-places">
          {places.map(place => (
            <Place key={place.key} place={place} model={model} />
          ))}
        </ul>
      ) : (
        <p className="mnb-hint">{t('none')}</p>
      )}
    </section>
  );
}

function Place({ place, model }: { place: IPlace; model: DebugModel }): JSX.Element {
  const t = useTranslate();
  const [first] = place.stops;
  const focus = model.isFocused(place);
  const who = whoText(place, t);
  const where = placeText(place, t);
  const isShown = model.shown !== null && place.stops.includes(model.shown);
  const ref = React.useRef<HTMLInputElement>(null);
  React.useEffect(() => {
    if (ref.current) {
      ref.current.indeterminate = focus === 'some';
    }
  }, [focus]);
  return (
    <li className={isShown ? 'mnb-debug-place mnb-mod-shown' : 'mnb-debug-place'}>
      <input
        ref={ref}
        type="checkbox"
        checked={focus === 'all'}
        aria-label={t('%1 get what is typed', who)}
        title={t('Gets what is typed')}
        onChange={() => model.toggle(place)}
      />
      <button
        type="button"
        className="mnb-debug-where"
        aria-current={isShown || undefined}
        title={t('Send lines only there')}
        onClick={() => model.focusOnly(place)}
      >
        <span className="mnb-debug-who">{t('%1: %2', who, where)}</span>
        {first.text && <code className="mnb-ellipsis">{first.text}</code>}
        <span className="mnb-hint">{[first.error, first.reason, first.what].filter(Boolean).join(', ')}</span>
      </button>
    </li>
  );
}
