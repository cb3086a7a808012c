import type { ISessionContext } from '@jupyterlab/apputils';
import type { ICodeCellModel } from '@jupyterlab/cells';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IOutputAreaModel } from '@jupyterlab/outputarea';
import type { Kernel } from '@jupyterlab/services';
import type { Translate } from '../words';

/** Statuses of a kernel that no longer updates its outputs. */
const GONE: readonly Kernel.Status[] = ['restarting', 'autorestarting', 'terminating', 'dead'];

/**
 * When a kernel ends, note that in the outputs of cells that continue in their mesh.
 *
 * The kernel sends the note too, but JupyterLab ignores messages of a kernel that is restarted, and a killed
 * kernel sends none.
 */
export function watchKernels(notebooks: INotebookTracker, t: Translate): void {
  const watch = (panel: NotebookPanel) => {
    panel.sessionContext.statusChanged.connect((_: ISessionContext, status: Kernel.Status) => {
      if (GONE.includes(status)) {
        markNotebook(panel, new Date(), t);
      }
    });
  };
  notebooks.forEach(watch);
  notebooks.widgetAdded.connect((_, panel) => watch(panel));
}

function markNotebook(panel: NotebookPanel, when: Date, t: Translate): void {
  for (const cell of panel.model?.cells ?? []) {
    if (cell.type === 'code') {
      markOutputs((cell as ICodeCellModel).outputs, when, t);
    }
  }
}

/** The part of a cell's outputs that is used here. */
export type Outputs = Pick<IOutputAreaModel, 'length' | 'get' | 'set'>;

/** Finish each output whose metadata has the note for the end of its kernel. */
export function markOutputs(outputs: Outputs, when: Date, t: Translate): void {
  for (let i = 0; i < outputs.length; i++) {
    const output = outputs.get(i).toJSON();
    const { monarch_nb: ours, ...metadata } = (output.metadata ?? {}) as {
      monarch_nb?: { unfinished?: string };
    };
    if (ours?.unfinished) {
      const clock = when.toTimeString().slice(0, 8);
      const text = t('this kernel was shut down at %1; %2', clock, ours.unfinished);
      outputs.set(i, { ...output, metadata, data: withLine(output.data as Record<string, unknown>, text) });
    }
  }
}

function withLine(data: Record<string, unknown>, line: string): Record<string, string> {
  const html = document.createElement('div');
  html.textContent = line;
  return {
    'text/plain': [joined(data['text/plain']), line].filter(Boolean).join('\n'),
    'text/html': joined(data['text/html']) + html.outerHTML
  };
}

/** Texts in notebooks may be lists of lines. */
function joined(text: unknown): string {
  return Array.isArray(text) ? text.join('') : String(text ?? '');
}
