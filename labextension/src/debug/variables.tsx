import * as React from 'react';
import type { IVariable } from './fold';
import { useTranslate } from '../translate';

/** The variables of the ranks in the focus, at their stops; equal values are merged. */
export function Variables({ variables }: { variables: readonly IVariable[] }): JSX.Element {
  const t = useTranslate();
  return (
    <section className="mnb-debug-side" aria-label={t('Variables')}>
      <div className="mnb-debug-head">
        <h3>{t('Variables')}</h3>
      </div>
      {variables.length ? (
        <table className="mnb-debug-variables">
          <thead>
            <tr>
              <th scope="col">{t('Name')}</th>
              <th scope="col">{t('Ranks')}</th>
              <th scope="col">{t('Value')}</th>
            </tr>
          </thead>
          <tbody>
            {variables.map(variable => (
              <Rows key={variable.name} variable={variable} />
            ))}
          </tbody>
        </table>
      ) : (
        <p className="mnb-hint">{t('none')}</p>
      )}
    </section>
  );
}

function Rows({ variable: { name, groups } }: { variable: IVariable }): JSX.Element {
  return (
    <>
      {groups.map(({ ranks, type, value }, i) => (
        <tr key={`${ranks} ${type}`} className={groups.length > 1 ? 'mnb-mod-differs' : undefined}>
          {i === 0 && (
            <th scope="row" rowSpan={groups.length}>
              {name}
            </th>
          )}
          <td>[{ranks}]</td>
          <td title={type}>{value}</td>
        </tr>
      ))}
    </>
  );
}
