import * as React from 'react';

/** Run a command of the application; failures have been shown when this resolves. */
export type Run = (command: string, args: { [name: string]: unknown }) => Promise<unknown>;

export interface IActionProps {
  label: string;
  title?: string;
  disabled?: boolean;
  pressed?: boolean;
  /** What it returns is waited for. */
  onRun: () => unknown;
}

/** A button that can't be pressed again while what it does is under way. */
export function Action({ label, title, disabled, pressed, onRun }: IActionProps): JSX.Element {
  const [isBusy, setBusy] = React.useState(false);
  const isMounted = React.useRef(true);
  React.useEffect(() => {
    isMounted.current = true;
    return () => {
      isMounted.current = false;
    };
  }, []);
  const click = async () => {
    setBusy(true);
    try {
      await onRun();
    } finally {
      if (isMounted.current) {
        setBusy(false);
      }
    }
  };
  return (
    <button
      type="button"
      className="mnb-button"
      title={title}
      disabled={disabled === true || isBusy}
      aria-busy={isBusy || undefined}
      aria-pressed={pressed}
      onClick={() => void click()}
    >
      {label}
    </button>
  );
}
