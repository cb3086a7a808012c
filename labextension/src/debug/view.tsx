import * as React from 'react';
import { Places } from './places';
import type { DebugModel, IEntry } from './model';
import { useNotifier } from '../notifier';
import type { IStop } from '../protocol';
import { useTranslate } from '../translate';
import { Variables } from './variables';

/** The debugger: places at the left, source, transcript and prompt in the middle, variables at the right. */
export function DebugView({ model }: { model: DebugModel }): JSX.Element {
  const t = useTranslate();
  useNotifier(model);
  const { shown } = model;
  return (
    <div className="mnb-debug">
      <Places model={model} />
      <section className="mnb-debug-main" aria-label={t('Debugger')}>
        <Steps model={model} />
        {shown ? <Source stop={shown} /> : <NoStops model={model} />}
        <Transcript entries={model.entries} />
        <Prompt model={model} />
      </section>
      <Variables variables={model.variables} />
    </div>
  );
}

/** The message shown while no rank is stopped. */
function NoStops({ model }: { model: DebugModel }): JSX.Element {
  const t = useTranslate();
  if (model.ended) {
    return (
      <p className="mnb-problem" role="alert">
        {model.ended}
      </p>
    );
  }
  if (!model.isHeard) {
    return <p className="mnb-hint">{t('Reading ...')}</p>;
  }
  return (
    <div className="mnb-message" role="status">
      <p>{t('No rank has stopped.')}</p>
      <p>{t('Put breakpoint() into a cell or an endpoint, or stop ranks where they are going:')}</p>
      <pre>%mesh break FILE:LINE</pre>
      <p>{t('To see where a cell has failed:')}</p>
      <pre>%mesh debug --post-mortem</pre>
    </div>
  );
}

function Steps({ model }: { model: DebugModel }): JSX.Element {
  const t = useTranslate();
  const isOff = model.isBusy || !model.ready.length;
  const steps: [string, string, string][] = [
    [t('Continue'), 'continue', t('Let the ranks of the focus run on, to the next breakpoint')],
    [t('Next'), 'next', t('To the next line of this function')],
    [t('Step'), 'step', t('To the next line, also into functions')],
    [t('Return'), 'return', t('To the end of this function')],
    [t('Where'), 'where', t('How they came there: the stack')]
  ];
  return (
    <div className="mnb-actions" role="toolbar" aria-label={t('Steps')}>
      {steps.map(([label, line, title]) => (
        <button
          key={line}
          type="button"
          className="mnb-button"
          title={title}
          disabled={isOff}
          onClick={() => void model.send(line)}
        >
          {label}
        </button>
      ))}
      <button
        type="button"
        className="mnb-button"
        title={t('Let all ranks run on, without breakpoints')}
        disabled={model.isBusy || !model.places.length}
        onClick={() => void model.send('quit', null)}
      >
        {t('Quit')}
      </button>
    </div>
  );
}

function Source({ stop }: { stop: IStop }): JSX.Element {
  const t = useTranslate();
  const lines = stop.source?.length ? stop.source : [[stop.line, stop.text] as [number, string]];
  const width = String(lines[lines.length - 1][0]).length;
  return (
    <figure className="mnb-debug-source">
      <figcaption className="mnb-hint">
        {t('%1, rank %2: %3', stop.file, stop.rank, stop.error || stop.what || stop.thread)}
      </figcaption>
      <pre tabIndex={0} aria-label={t('Source around line %1', stop.line)}>
        {lines.map(([number, text]) => (
          <div
            key={number}
            className={number === stop.line ? 'mnb-debug-code mnb-mod-here' : 'mnb-debug-code'}
            aria-current={number === stop.line || undefined}
          >
            {`${number === stop.line ? '\u2192' : ' '} ${String(number).padStart(width)}  ${text}`}
          </div>
        ))}
      </pre>
    </figure>
  );
}

function Transcript({ entries }: { entries: readonly IEntry[] }): JSX.Element {
  const t = useTranslate();
  const ref = React.useRef<HTMLDivElement>(null);
  const last = entries.at(-1)?.key;
  React.useLayoutEffect(() => {
    if (ref.current) {
      ref.current.scrollTop = ref.current.scrollHeight;
    }
  }, [last]);
  return (
    <div
      ref={ref}
      className="mnb-debug-transcript"
      role="log"
      aria-live="polite"
      aria-label={t('Answers')}
      tabIndex={0}
    >
      {entries.map(({ key, kind, ranks, text }) => (
        <div key={key} className={`mnb-debug-entry mnb-mod-${kind}`}>
          {ranks && <span className="mnb-log-rank">[{ranks}] </span>}
          {kind === 'line' ? `> ${text}` : text}
        </div>
      ))}
    </div>
  );
}

function Prompt({ model }: { model: DebugModel }): JSX.Element {
  const t = useTranslate();
  const [line, setLine] = React.useState('');
  const { ready } = model;
  const submit = (event: React.FormEvent) => {
    event.preventDefault();
    if (!model.isBusy) {
      setLine('');
      void model.enter(line);
    }
  };
  const onKeyDown = (event: React.KeyboardEvent) => {
    if (event.key === 'ArrowUp' || event.key === 'ArrowDown') {
      event.preventDefault();
      setLine(event.key === 'ArrowUp' ? model.previous(line) : model.next(line));
    } else if (event.key === 'Escape') {
      setLine('');
    }
  };
  return (
    <form className="mnb-debug-prompt" onSubmit={submit}>
      <input
        className="mnb-input mnb-debug-line"
        value={line}
        placeholder={
          ready.length ? t('a line for pdb: p x, n, s, u, d, l ...') : t('nobody waits for a line')
        }
        aria-label={t('Line for the ranks of the focus')}
        aria-busy={model.isBusy || undefined}
        autoComplete="off"
        autoCapitalize="off"
        spellCheck={false}
        disabled={model.ended !== ''}
        onChange={event => setLine(event.target.value)}
        onKeyDown={onKeyDown}
      />
    </form>
  );
}
