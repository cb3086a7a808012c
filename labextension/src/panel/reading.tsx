import * as React from 'react';
import { Action } from './controls';
import { messageOf } from '../errors';
import type { IEntry } from '../protocol';
import { useTranslate } from '../translate';
import { clock } from '../words';

export interface IReadingProps<T> {
  read: () => Promise<T>;
  show: (answer: T) => JSX.Element;
}

/** One answer of the server; what was shown stays until the next answer is there. */
export function Reading<T>({ read, show }: IReadingProps<T>): JSX.Element {
  const t = useTranslate();
  const [answer, setAnswer] = React.useState<{ value: T } | null>(null);
  const [problem, setProblem] = React.useState('');
  const renew = React.useCallback(async () => {
    try {
      const value = await read();
      setAnswer({ value });
      setProblem('');
    } catch (error) {
      setProblem(messageOf(error));
    }
  }, [read]);
  React.useEffect(() => void renew(), [renew]);
  return (
    <>
      <div className="mnb-actions">
        <Action label={t('Read again')} onRun={renew} />
      </div>
      {problem && (
        <p className="mnb-problem" role="alert">
          {problem}
        </p>
      )}
      {answer ? show(answer.value) : !problem && <p className="mnb-hint">{t('Reading ...')}</p>}
    </>
  );
}

/** Python stacks, as the server wrote them. */
export function Stacks({ text }: { text: string }): JSX.Element {
  return (
    <pre className="mnb-stacks" tabIndex={0}>
      {text}
    </pre>
  );
}

/** The journal, newest entry first. */
export function Journal({ entries }: { entries: IEntry[] }): JSX.Element {
  const t = useTranslate();
  if (!entries.length) {
    return <p className="mnb-hint">{t('The journal is empty.')}</p>;
  }
  const heads = [t('Number'), t('When'), t('Who'), t('What'), t('Ranks'), t('Status'), t('Source')];
  return (
    <table className="mnb-journal">
      <thead>
        <tr>
          {heads.map(head => (
            <th key={head} scope="col">
              {head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {[...entries]
          .sort((a, b) => b.n - a.n)
          .map((entry, i) => (
            <Row key={i} entry={entry} />
          ))}
      </tbody>
    </table>
  );
}

function Row({ entry }: { entry: IEntry }): JSX.Element {
  const source = entry.source ?? '';
  return (
    <tr>
      <td className="mnb-number">{entry.n}</td>
      <td>{clock(entry.when)}</td>
      <td>{entry.who}</td>
      <td>{entry.kind}</td>
      <td>{entry.ranks}</td>
      <td>{entry.status}</td>
      <td>
        <SourceText source={source} />
      </td>
    </tr>
  );
}

/** The first line; the others after a click. */
function SourceText({ source }: { source: string }): JSX.Element {
  const [first] = source.split('\n', 1);
  return source === first ? (
    <code>{source}</code>
  ) : (
    <details>
      <summary>
        <code>{first} ...</code>
      </summary>
      <pre>{source}</pre>
    </details>
  );
}
