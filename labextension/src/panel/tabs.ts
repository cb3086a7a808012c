import type { JupyterFrontEnd } from '@jupyterlab/application';
import { SplitPanel, type Widget } from '@lumino/widgets';

/** Less of the height than this is no room to read in. */
const LEAST_SHARE = 0.15;

/** Open a tab in the main area, or below the one document of Notebook 7. */
export function openTab(app: JupyterFrontEnd, tab: Widget, isLab: boolean): void {
  app.shell.add(tab, isLab ? 'main' : 'down');
  app.shell.activateById(tab.id);
  if (!isLab) {
    makeRoom(tab);
  }
}

/** The area below a notebook comes up with no more than its tabs in sight. */
function makeRoom(tab: Widget): void {
  let parent = tab.parent;
  while (parent && !(parent instanceof SplitPanel)) {
    parent = parent.parent;
  }
  const sizes = parent?.relativeSizes() ?? [];
  if (sizes.length === 2 && sizes[1] < LEAST_SHARE) {
    parent?.setRelativeSizes([2, 1]);
  }
}
