import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { KernelMessage } from '@jupyterlab/services';
import type { Panel } from '@lumino/widgets';

/**
 * What a kernel says when it doesn't wait for the keyboard any more: somebody else has let the ranks run on.
 */
export const INPUT_OVER_MIME_TYPE = 'application/vnd.monarch-nb.input-over+json';

const BOX = 'jp-OutputArea-stdin-item';
/** JupyterLab leaves a box that has been answered for a moment. */
const ANSWERED = 'jp-OutputArea-stdin-hiding';

/**
 * Take input boxes away when their question is taken back, in all notebooks.
 *
 * Otherwise the box stays, and JupyterLab runs no cell before something was typed into it.
 */
export function closeInputBoxes(notebooks: INotebookTracker): void {
  const follow = (panel: NotebookPanel) => new InputBoxes(panel);
  notebooks.forEach(follow);
  notebooks.widgetAdded.connect((_, panel) => void follow(panel));
}

/** The input boxes of one notebook. */
class InputBoxes {
  /** The message may be here before the box is: they come on different channels. */
  private _isOwed = false;

  constructor(private readonly _panel: NotebookPanel) {
    const { sessionContext } = _panel;
    sessionContext.iopubMessage.connect((_, message) => {
      if (isInputOver(message)) {
        this._isOwed = !this._close();
      }
    });
    const listen = () =>
      sessionContext.session?.pendingInput.connect((_, isPending) => {
        if (isPending && this._isOwed) {
          // The box is made by who hears of the request next.
          setTimeout(() => (this._isOwed = !this._close()), 0);
        }
      });
    sessionContext.sessionChanged.connect(listen);
    listen();
  }

  /** Take away what is open; returns whether there was something. */
  private _close(): boolean {
    const { content, sessionContext } = this._panel;
    const boxes = content.widgets
      .flatMap(cell => ('outputArea' in cell ? [...(cell.outputArea as Panel).widgets] : []))
      .filter(box => box.hasClass(BOX) && !box.hasClass(ANSWERED));
    const hadFocus = boxes.some(box => box.node.contains(document.activeElement));
    boxes.forEach(box => box.dispose());
    if (boxes.length) {
      sessionContext.session?.kernel?.removeInputGuard();
    }
    if (hadFocus) {
      content.activate();
    }
    return boxes.length > 0;
  }
}

function isInputOver(message: KernelMessage.IMessage): boolean {
  const { data } = message.content as { data?: object };
  return message.header.msg_type === 'update_display_data' && INPUT_OVER_MIME_TYPE in (data ?? {});
}
