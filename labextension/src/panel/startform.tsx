import * as React from 'react';
import { messageOf } from '../errors';
import type { IMeshSummary, IStartRequest } from '../protocol';
import { EMPTY_DRAFT, findProblems, requestOf, type Field, type IDraft, type Problems } from './start';
import { useTranslate } from '../translate';

export interface IStartFormProps {
  /** Names of meshes that run already. */
  taken: string[];
  start: (request: IStartRequest) => Promise<IMeshSummary>;
  onStarted: (mesh: string) => void;
}

/**
 * The form that starts a mesh. What is wrong with a field stands below it, what the server said below all.
 */
export function StartForm({ taken, start, onStarted }: IStartFormProps): JSX.Element {
  const t = useTranslate();
  const [draft, setDraft] = React.useState<IDraft>(() => ({ ...EMPTY_DRAFT, name: freeName(taken) }));
  const [isChecked, setChecked] = React.useState(false);
  const [isBusy, setBusy] = React.useState(false);
  const [refusal, setRefusal] = React.useState('');
  const problems = isChecked ? findProblems(draft, taken, t) : {};
  const change = (changes: Partial<IDraft>) => setDraft(old => ({ ...old, ...changes }));

  const submit = async (event: React.FormEvent) => {
    event.preventDefault();
    setChecked(true);
    if (isBusy || Object.keys(findProblems(draft, taken, t)).length) {
      return;
    }
    setBusy(true);
    setRefusal('');
    try {
      onStarted((await start(requestOf(draft))).name);
    } catch (error) {
      setRefusal(messageOf(error));
    } finally {
      setBusy(false);
    }
  };

  return (
    <form className="mnb-form" onSubmit={submit} aria-label={t('Start a mesh')} aria-busy={isBusy} noValidate>
      <fieldset disabled={isBusy}>
        <Row field="name" label={t('Name')} draft={draft} problems={problems} change={change} />
        <div className="mnb-form-pair">
          <Row
            field="dimension"
            label={t('Dimension')}
            hint={t('automatic')}
            draft={draft}
            problems={problems}
            change={change}
          />
          <Row
            field="size"
            label={t('Size')}
            hint={t('all')}
            isNumber
            draft={draft}
            problems={problems}
            change={change}
          />
        </div>
        <p className="mnb-hint">
          {t('Leave both empty for one rank per GPU, or per core where there is none.')}
        </p>
        <Choice
          field="job"
          label={t('Where')}
          options={[
            ['local', t('local: this machine')],
            ['process', t('process: several hosts on this machine')]
          ]}
          draft={draft}
          change={change}
        />
        {draft.job === 'process' && (
          <Row
            field="hosts"
            label={t('Hosts')}
            hint="2"
            isNumber
            draft={draft}
            problems={problems}
            change={change}
          />
        )}
        <Choice
          field="processGroup"
          label={t('Process group')}
          options={[
            ['', t('none')],
            ['auto', t('as fits its devices')],
            ['nccl', 'nccl'],
            ['gloo', 'gloo']
          ]}
          draft={draft}
          change={change}
        />
        <Row
          field="idleTimeout"
          label={t('Ends after, without a client')}
          draft={draft}
          problems={problems}
          change={change}
        />
        {refusal && (
          <p className="mnb-problem" role="alert">
            {refusal}
          </p>
        )}
        <button type="submit" className="mnb-button mnb-mod-accept">
          {isBusy ? t('Starting ...') : t('Start')}
        </button>
      </fieldset>
    </form>
  );
}

/** What is chosen from a list. */
type ChoiceField = 'job' | 'processGroup';

interface IRowProps {
  field: Exclude<Field, ChoiceField>;
  label: string;
  hint?: string;
  isNumber?: boolean;
  draft: IDraft;
  problems: Problems;
  change: (changes: Partial<IDraft>) => void;
}

function Row({ field, label, hint, isNumber, draft, problems, change }: IRowProps): JSX.Element {
  const id = React.useId();
  const problem = problems[field];
  return (
    <div className="mnb-form-row">
      <label htmlFor={id}>{label}</label>
      <input
        id={id}
        name={field}
        className="mnb-input"
        value={draft[field]}
        placeholder={hint}
        inputMode={isNumber ? 'numeric' : undefined}
        spellCheck={false}
        autoComplete="off"
        aria-invalid={problem ? true : undefined}
        aria-describedby={problem ? `${id}-problem` : undefined}
        onChange={event => change({ [field]: event.target.value })}
      />
      {problem && (
        <p id={`${id}-problem`} className="mnb-problem">
          {problem}
        </p>
      )}
    </div>
  );
}

interface IChoiceProps extends Pick<IRowProps, 'label' | 'draft' | 'change'> {
  field: ChoiceField;
  /** Values, and what people read. */
  options: [string, string][];
}

function Choice({ field, label, options, draft, change }: IChoiceProps): JSX.Element {
  const id = React.useId();
  return (
    <div className="mnb-form-row">
      <label htmlFor={id}>{label}</label>
      <select
        id={id}
        name={field}
        className="mnb-input"
        value={draft[field]}
        onChange={event => change({ [field]: event.target.value })}
      >
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </div>
  );
}

/** Return a name that no mesh has: mesh, mesh2, mesh3 ... */
function freeName(taken: string[]): string {
  let name = EMPTY_DRAFT.name;
  for (let n = 2; taken.includes(name); n++) {
    name = `${EMPTY_DRAFT.name}${n}`;
  }
  return name;
}
