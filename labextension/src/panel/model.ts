import { Notifier } from '../notifier';
import type { IAllocation, IMeshSummary } from '../protocol';
import type { Stream } from '../transport/stream';

/** What the panel and the status bar need of the stream. */
export type Feed = Pick<
  Stream,
  'watchMeshes' | 'watchAllocations' | 'watchStatus' | 'state' | 'serverVersion' | 'on'
>;

/**
 * Which meshes there are, and what of them is shown.
 *
 * The meshes are watched while somebody holds a watch: the panel while it's visible, the status bar while
 * it's switched on. Nobody: no socket.
 */
export class MeshesModel extends Notifier {
  private _meshes: IMeshSummary[] | null = null;
  private _allocations: IAllocation[] = [];
  private _current: string | null = null;
  private _kernel = '';
  private _isActive = false;
  private _isFormOpen: boolean | null = null;
  private _openByDefault = true;
  private readonly _open = new Map<string, boolean>();
  private _numWatches = 0;
  private _stop: (() => void) | null = null;
  private _stopAllocations: (() => void) | null = null;

  constructor(readonly feed: Feed) {
    super();
  }

  /** The meshes as last heard of; null before the first word. */
  get meshes(): IMeshSummary[] | null {
    return this._meshes;
  }

  /** The requests for hosts of engines, as last heard of while the panel could be seen. */
  get allocations(): IAllocation[] {
    return this._allocations;
  }

  /** The mesh that the current notebook uses; else the one last used in the panel, or the only one. */
  get current(): IMeshSummary | null {
    const meshes = this._meshes ?? [];
    const used = (mesh: IMeshSummary) => mesh.kernels?.[this._kernel] ?? -1;
    const [first] = meshes.filter(mesh => used(mesh) >= 0).sort((a, b) => used(b) - used(a));
    return (
      first ?? meshes.find(mesh => mesh.name === this._current) ?? (meshes.length === 1 ? meshes[0] : null)
    );
  }

  /** The kernel of the current notebook; empty without one. */
  set kernel(id: string) {
    if (id !== this._kernel) {
      this._kernel = id;
      this.changed();
    }
  }

  /** Whether the panel can be seen; else it needs no numbers. */
  get isActive(): boolean {
    return this._isActive;
  }

  set isActive(value: boolean) {
    this._isActive = value;
    this._followAllocations();
    this.changed();
  }

  /** Whether the start form is open: as people left it, or because there's nothing else to show. */
  get isFormOpen(): boolean {
    return this._isFormOpen ?? (this._meshes?.length === 0 && this._allocations.length === 0);
  }

  set isFormOpen(value: boolean) {
    this._isFormOpen = value;
    this.changed();
  }

  set openByDefault(value: boolean) {
    this._openByDefault = value;
    this.changed();
  }

  isOpen(mesh: string): boolean {
    return this._open.get(mesh) ?? this._openByDefault;
  }

  toggle(mesh: string): void {
    this._open.set(mesh, !this.isOpen(mesh));
    this.changed();
  }

  /** Remember that a mesh was used. */
  use(mesh: string): void {
    if (mesh !== this._current) {
      this._current = mesh;
      this.changed();
    }
  }

  /** A mesh was started here: show it, and put the form away. */
  started(mesh: string): void {
    this._isFormOpen = null;
    this._open.set(mesh, true);
    this._current = mesh;
    this.changed();
  }

  /** Keep the list of meshes up to date; returns how to stop. */
  watch(): () => void {
    this._numWatches += 1;
    this._stop ??= this.feed.watchMeshes(meshes => {
      this._meshes = meshes;
      this.changed();
    });
    let isOver = false;
    return () => {
      if (!isOver) {
        isOver = true;
        this._unwatch();
      }
    };
  }

  /** Engines are asked for as long as somebody looks. */
  private _followAllocations(): void {
    if (!this._isActive) {
      this._stopAllocations?.();
      this._stopAllocations = null;
      return;
    }
    this._stopAllocations ??= this.feed.watchAllocations(allocations => {
      this._allocations = allocations;
      this.changed();
    });
  }

  private _unwatch(): void {
    this._numWatches -= 1;
    if (this._numWatches === 0) {
      this._stop?.();
      this._stop = null;
    }
  }
}
