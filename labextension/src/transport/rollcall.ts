/**
 * Listeners, or whatever else is told: the same one may be there twice, and may leave while all are called.
 */
export class Rollcall<T> {
  private readonly _entries = new Set<{ item: T }>();

  get size(): number {
    return this._entries.size;
  }

  get first(): T | undefined {
    return [...this._entries][0]?.item;
  }

  /** Returns how to take it away again, which says whether it was there still. */
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
