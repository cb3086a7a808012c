import css from '../../style/card.css';
import { MeshCard } from './card';
import { element } from './dom';
import type { IMeshStatus } from '../protocol';
import { MeshStore } from '../transport/store';
import type { StatusMessage } from '../transport/store';
import { WidgetActions } from './widgetactions';

/** The model of the kernel's side, as anywidget provides it. */
export interface IModel {
  get(name: string): unknown;
  on(name: string, callback: (...args: unknown[]) => void): void;
  off(name: string, callback: (...args: unknown[]) => void): void;
  send(content: unknown): void;
}

type Delta = Omit<Extract<StatusMessage, { type: 'delta' }>, 'type'>;

/** A model's store, shared by its views, so that a second view has the earlier state. */
interface IShared {
  store: MeshStore;
  numViews: number;
  stop(): void;
}

const shared = new Map<IModel, IShared>();

/** Keep a store up to date with a model, from the first of its views to the last. */
function acquire(model: IModel): IShared {
  const known = shared.get(model);
  if (known) {
    known.numViews += 1;
    return known;
  }
  const store = new MeshStore();
  const onSnapshot = (): void => {
    const status = model.get('snapshot') as IMeshStatus | null;
    if (status?.ranks) {
      store.apply({ type: 'status', status });
    }
  };
  const onDelta = (): void => {
    const delta = model.get('delta') as Delta | null;
    if (delta?.ranks) {
      store.apply({ type: 'delta', mesh: delta.mesh, hosts: delta.hosts, ranks: delta.ranks });
    }
  };
  const onEnded = (): void => {
    const reason = model.get('ended') as string | null;
    if (reason) {
      store.end(reason);
    }
  };
  onSnapshot();
  onEnded();
  const listeners = { 'change:snapshot': onSnapshot, 'change:delta': onDelta, 'change:ended': onEnded };
  Object.entries(listeners).forEach(([name, listener]) => model.on(name, listener));
  const stop = (): void => Object.entries(listeners).forEach(([name, listener]) => model.off(name, listener));
  const made = { store, numViews: 1, stop };
  shared.set(model, made);
  return made;
}

function release(model: IModel): void {
  const known = shared.get(model);
  if (known && --known.numViews === 0) {
    known.stop();
    shared.delete(model);
  }
}

/** Show a mesh; returns a function that removes it. The kernel sends changes while a view exists. */
function render({ model, el }: { model: IModel; el: HTMLElement }): () => void {
  const { store } = acquire(model);
  const actions = new WidgetActions(model, () => store.status?.name ?? '');
  const card = new MeshCard(store, actions);
  // Inside the element, as some front ends put it into a shadow tree.
  const style = element('style', '', css);
  el.append(style, card.node);
  model.send({ kind: 'view', visible: true });
  return () => {
    model.send({ kind: 'view', visible: false });
    card.dispose();
    actions.dispose();
    release(model);
    style.remove();
    card.node.remove();
  };
}

export default { render };
