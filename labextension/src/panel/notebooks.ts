import { NotebookActions, type INotebookTracker } from '@jupyterlab/notebook';

/**
 * Put code into a new cell below the active one of the current notebook, and run it if asked.
 *
 * Returns whether there is a notebook.
 */
export function insertCell(tracker: INotebookTracker | null, code: string, isRun = false): boolean {
  const panel = tracker?.currentWidget;
  if (!panel?.content.model) {
    return false;
  }
  const notebook = panel.content;
  NotebookActions.insertBelow(notebook);
  notebook.activeCell?.model.sharedModel.setSource(code);
  if (isRun) {
    void NotebookActions.run(notebook, panel.sessionContext);
  }
  return true;
}
