import * as React from 'react';

/** An object that notifies listeners of its changes. */
export abstract class Notifier {
  private readonly _listeners = new Set<() => void>();
  private _version = 0;

  /** Number of changes. */
  get version(): number {
    return this._version;
  }

  /** Call `listener` after each change; returns a function that stops that. */
  readonly on = (listener: () => void): (() => void) => {
    this._listeners.add(listener);
    return () => {
      this._listeners.delete(listener);
    };
  };

  protected changed(): void {
    this._version += 1;
    [...this._listeners].forEach(listener => listener());
  }
}

/** Render again whenever `notifier` changes. */
export function useNotifier(notifier: Notifier): void {
  React.useSyncExternalStore(notifier.on, () => notifier.version);
}

/** Render again at each callback; for sources without a version. */
export function useChanges(on: (listener: () => void) => () => void): void {
  const [, setCount] = React.useState(0);
  React.useEffect(() => on(() => setCount(count => count + 1)), [on]);
}
