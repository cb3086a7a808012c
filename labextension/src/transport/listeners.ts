/**
 * A list of listeners or other receivers: one may be added twice, and may be removed while all are called.
 */
export class Listeners<T> {
  private readonly _entries = new Set<{ item: T }>();

  get size(): number {
    return this._entries.size;
  }

  get first(): T | undefined {
    return [...this._entries][0]?.item;
  }

  /** Add an item; returns a function that removes it, and returns whether it was still there. */
  add(item: T): () => boolean {
    const entry = { item };
    this._entries.add(entry);
    return () => this._entries.delete(entry);
  }

  /** Call each; who has left meanwhile is left out. */
  call(how: (item: T) => void): void {
    for (const entry of [...this._entries]) {
      if (this._entries.has(entry)) {
        how(entry.item);
      }
    }
  }
}
