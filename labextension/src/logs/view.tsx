import * as React from 'react';
import { spansOf } from './ansi';
import type { ISegment, LogModel } from './model';
import { useNotifier } from '../notifier';
import type { ILogLine } from '../protocol';
import { useTranslate } from '../translate';

/** Distance from an edge, in pixels, that counts as at the edge. */
const NEAR = 24;

/** The log viewer: a toolbar with the selection, and the lines. */
export function LogView({ model }: { model: LogModel }): JSX.Element {
  const t = useTranslate();
  useNotifier(model);
  return (
    <div className="mnb-logs">
      <LogToolbar model={model} />
      {model.problem && (
        <p className="mnb-problem mnb-log-problem" role="alert">
          {model.problem}
        </p>
      )}
      <Lines model={model} />
      <div className="mnb-log-foot" role="status">
        {footText(model, t)}
      </div>
    </div>
  );
}

function footText(model: LogModel, t: ReturnType<typeof useTranslate>): string {
  if (model.isLoading) {
    return t('Reading ...');
  }
  if (model.problem && !model.numLines) {
    return '';
  }
  if (model.ended) {
    return t('Nothing more will come: %1', model.ended);
  }
  return model.isFollowing ? t('%1 lines, following', model.numLines) : t('%1 lines', model.numLines);
}

/** Explain an empty page: the server searches a part of the output at a time, which may have no match. */
function emptyText(model: LogModel, t: ReturnType<typeof useTranslate>): string {
  if (model.hasOlder) {
    return t('No line matches in the last part of the output; Older searches on.');
  }
  return model.grep ? t('No line matches.') : t('Nothing was written yet.');
}

function LogToolbar({ model }: { model: LogModel }): JSX.Element {
  const t = useTranslate();
  const [ranks, setRanks] = React.useState(model.ranks);
  const [grep, setGrep] = React.useState(model.grep);
  const submit = (event: React.FormEvent) => {
    event.preventDefault();
    void model.load(ranks.trim(), grep);
  };
  return (
    <form className="mnb-log-bar" role="search" onSubmit={submit}>
      <input
        className="mnb-input mnb-log-ranks"
        value={ranks}
        placeholder={t('all ranks')}
        title={t('Ranks, as in 0-3,7')}
        aria-label={t('Ranks')}
        spellCheck={false}
        onChange={event => setRanks(event.target.value)}
        onBlur={() => ranks.trim() !== model.ranks && void model.load(ranks.trim(), grep)}
      />
      <input
        className="mnb-input mnb-log-grep"
        type="search"
        value={grep}
        placeholder={t('Search, a regular expression')}
        aria-label={t('Search')}
        aria-invalid={model.problem && grep ? true : undefined}
        spellCheck={false}
        onChange={event => setGrep(event.target.value)}
      />
      <button type="submit" className="mnb-button">
        {t('Search')}
      </button>
      <button
        type="button"
        className="mnb-button"
        disabled={!model.hasOlder || model.isLoading}
        onClick={() => void model.older()}
      >
        {t('Older')}
      </button>
      <label className="mnb-log-follow">
        <input
          type="checkbox"
          checked={model.isFollowing}
          onChange={event => {
            model.isFollowing = event.target.checked;
          }}
        />
        {t('Follow')}
      </label>
    </form>
  );
}

function Lines({ model }: { model: LogModel }): JSX.Element {
  const t = useTranslate();
  const scroller = useScroller(model);
  return (
    <div
      className="mnb-log-lines"
      tabIndex={0}
      role="log"
      aria-live="off"
      aria-label={t('Lines')}
      {...scroller}
    >
      {model.isCutAbove && (
        <p className="mnb-log-note">
          {t('Older lines were dropped from this view, as there are too many; scroll up to read them again.')}
        </p>
      )}
      {!model.numLines && !model.isLoading && !model.problem && (
        <p className="mnb-log-note">{emptyText(model, t)}</p>
      )}
      {model.segments.map(segment => (
        <Segment key={segment.key} segment={segment} />
      ))}
      {model.isCutBelow && (
        <p className="mnb-log-note">
          {t('Newer lines are not shown.')}{' '}
          <button
            type="button"
            className="mnb-button"
            onClick={() => {
              model.isFollowing = true;
            }}
          >
            {t('Go to the end')}
          </button>
        </p>
      )}
    </div>
  );
}

/** Segments never change, so only the newest is rendered when lines come in. */
const Segment = React.memo(function Segment({ segment }: { segment: ISegment }): JSX.Element {
  // The height of lines that the browser hasn't laid out yet.
  const height = { '--mnb-lines': segment.lines.length } as React.CSSProperties;
  return (
    <div className="mnb-log-segment" style={height}>
      {segment.lines.map((line, i) => (
        <Line key={i} line={line} />
      ))}
    </div>
  );
});

function Line({ line }: { line: ILogLine }): JSX.Element {
  const isError = line.stream === 'stderr';
  const when = new Date(line.when * 1000).toLocaleTimeString();
  return (
    <div
      className={isError ? 'mnb-log-line mnb-mod-stderr' : 'mnb-log-line'}
      title={isError ? `${when}, stderr` : when}
    >
      <span className="mnb-log-rank">[{line.rank}]</span>{' '}
      {spansOf(line.text).map(({ text, look }, i) =>
        look ? (
          <span key={i} className={look}>
            {text}
          </span>
        ) : (
          text
        )
      )}
    </div>
  );
}

/**
 * Stick to the bottom unless the user has scrolled up; at the top, read the previous page and keep the line
 * at the top in place.
 */
function useScroller(model: LogModel) {
  const ref = React.useRef<HTMLDivElement>(null);
  const isAtBottom = React.useRef(true);
  const first = React.useRef<{ key: number; fromBottom: number } | null>(null);

  React.useLayoutEffect(() => {
    const node = ref.current;
    if (!node) {
      return;
    }
    const key = model.segments[0]?.key ?? -1;
    const before = first.current;
    const wasPrepended =
      before !== null && key !== before.key && model.segments.some(s => s.key === before.key);
    if (isAtBottom.current && model.isFollowing) {
      node.scrollTop = node.scrollHeight;
    } else if (wasPrepended) {
      node.scrollTop = node.scrollHeight - before.fromBottom;
    }
    first.current = { key, fromBottom: node.scrollHeight - node.scrollTop };
  });

  const onScroll = () => {
    const node = ref.current;
    if (!node) {
      return;
    }
    const fromBottom = node.scrollHeight - node.scrollTop;
    isAtBottom.current = fromBottom - node.clientHeight < NEAR;
    if (first.current) {
      first.current.fromBottom = fromBottom;
    }
    if (node.scrollTop < NEAR && !isAtBottom.current && !model.problem) {
      void model.older();
    }
  };
  return { ref, onScroll };
}
