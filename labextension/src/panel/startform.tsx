import * as React from 'react';
import { messageOf } from '../errors';
import type { ICluster, IStartRequest } from '../protocol';
import {
  clusterOf,
  EMPTY_DRAFT,
  findProblems,
  ON,
  requestOf,
  type Field,
  type IDraft,
  type Problems
} from './start';
import { useTranslate } from '../translate';
import { duration, type Translate } from '../words';

export interface IStartFormProps {
  /** Names of meshes that run already. */
  taken: string[];
  start: (request: IStartRequest) => Promise<{ name: string }>;
  clusters: () => Promise<ICluster[]>;
  onStarted: (mesh: string) => void;
}

/**
 * The form that starts a mesh. What is wrong with a field stands below it, what the server said below all.
 */
export function StartForm({ taken, start, clusters, onStarted }: IStartFormProps): JSX.Element {
  const t = useTranslate();
  const [draft, setDraft] = React.useState<IDraft>(() => ({ ...EMPTY_DRAFT, name: freeName(taken) }));
  const [isChecked, setChecked] = React.useState(false);
  const [isBusy, setBusy] = React.useState(false);
  const [refusal, setRefusal] = React.useState('');
  const [known, placesProblem] = usePlaces(clusters);
  const places = known ?? [];
  const found = findProblems(draft, taken, t, places);
  // Whether a cluster can be used is said at once: nothing that is typed changes it.
  const problems: Problems = isChecked ? found : { job: found.job };
  const cluster = places.find(({ name }) => name === clusterOf(draft));
  const change = (changes: Partial<IDraft>) => setDraft(old => ({ ...old, ...changes }));

  const submit = async (event: React.FormEvent) => {
    event.preventDefault();
    setChecked(true);
    if (isBusy || Object.keys(found).length) {
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
            ['process', t('process: several hosts on this machine')],
            ...placeOptions(places, t)
          ]}
          draft={draft}
          problems={problems}
          change={change}
        />
        {!known && !placesProblem && <p className="mnb-hint">{t('Asking which clusters there are ...')}</p>}
        {placesProblem && <p className="mnb-problem">{placesProblem}</p>}
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
        {cluster && <Hosts cluster={cluster} draft={draft} problems={problems} change={change} />}
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
          problems={problems}
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
          {isBusy ? (cluster ? t('Asking ...') : t('Starting ...')) : t('Start')}
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

/** What is asked of a cluster; empty fields leave it to the profile. */
function Hosts({
  cluster,
  draft,
  problems,
  change
}: { cluster: ICluster } & Pick<IRowProps, 'draft' | 'problems' | 'change'>): JSX.Element {
  const t = useTranslate();
  const given = { draft, problems, change };
  const time = cluster.time_s === null ? t('no limit of its own') : duration(cluster.time_s);
  return (
    <>
      <div className="mnb-form-pair">
        <Row field="hosts" label={t('Hosts')} hint={cluster.hosts || '1'} {...given} />
        <Row
          field="gpus"
          label={t('GPUs per host')}
          hint={cluster.gpus === null ? t('none asked for') : String(cluster.gpus)}
          isNumber
          {...given}
        />
      </div>
      <Row field="time" label={t('Time, as in 2h')} hint={time} {...given} />
      <p className="mnb-hint">
        {t(
          'A request may wait in a queue: it goes on without this page and this server. 2..8 hosts: ' +
            'the mesh begins with as many as are granted.'
        )}
      </p>
    </>
  );
}

/** Return the clusters that hosts can be asked for at, null before the answer, and why they aren't known. */
function usePlaces(clusters: () => Promise<ICluster[]>): [ICluster[] | null, string] {
  const [places, setPlaces] = React.useState<ICluster[] | null>(null);
  const [problem, setProblem] = React.useState('');
  const ask = React.useRef(clusters);
  React.useEffect(() => {
    let isShown = true;
    ask.current().then(
      found => isShown && setPlaces(found.filter(each => each.is_profile || !each.why_not)),
      (error: unknown) => isShown && setProblem(messageOf(error))
    );
    return () => {
      isShown = false;
    };
  }, []);
  return [places, problem];
}

/** "lab: slurm, partition a100"; an engine without a profile is its own name. */
function placeOptions(places: ICluster[], t: Translate): [string, string][] {
  return places.map(({ name, engine, is_profile, partition, why_not }) => {
    const about = [is_profile ? engine : t('without a profile'), partition && t('partition %1', partition)];
    const text = `${name}: ${about.filter(Boolean).join(', ')}`;
    return [ON + name, why_not ? t('%1 (not usable here)', text) : text];
  });
}

interface IChoiceProps extends Pick<IRowProps, 'label' | 'draft' | 'problems' | 'change'> {
  field: ChoiceField;
  /** Values, and what people read. */
  options: [string, string][];
}

function Choice({ field, label, options, draft, problems, change }: IChoiceProps): JSX.Element {
  const id = React.useId();
  const problem = problems[field];
  return (
    <div className="mnb-form-row">
      <label htmlFor={id}>{label}</label>
      <select
        id={id}
        name={field}
        className="mnb-input"
        value={draft[field]}
        aria-invalid={problem ? true : undefined}
        aria-describedby={problem ? `${id}-problem` : undefined}
        onChange={event => change({ [field]: event.target.value })}
      >
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
      {problem && (
        <p id={`${id}-problem`} className="mnb-problem">
          {problem}
        </p>
      )}
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
