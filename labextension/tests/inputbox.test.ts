import { Widget } from '@lumino/widgets';
import { Signal } from '@lumino/signaling';
import { describe, expect, it, vi } from 'vitest';
import { closeInputBoxes, INPUT_OVER_MIME_TYPE } from '../src/panel/inputbox';

function box(...classes: string[]): Widget {
  const made = new Widget();
  ['jp-OutputArea-stdin-item', ...classes].forEach(name => made.addClass(name));
  return made;
}

function open(widgets: Widget[]) {
  const source = {};
  const iopubMessage = new Signal<object, object>(source);
  const pendingInput = new Signal<object, boolean>(source);
  const removeInputGuard = vi.fn();
  const panel = {
    content: { activate: vi.fn(), widgets: [{ outputArea: { widgets } }, {}] },
    sessionContext: {
      iopubMessage,
      sessionChanged: new Signal<object, object>(source),
      session: { pendingInput, kernel: { removeInputGuard } }
    }
  };
  const tracker = {
    forEach: (follow: (panel: object) => void) => follow(panel),
    widgetAdded: new Signal<object, object>(source)
  };
  closeInputBoxes(tracker as never);
  const say = (msg_type: string, data: object) =>
    iopubMessage.emit({ header: { msg_type }, content: { data } });
  return {
    removeInputGuard,
    pendingInput,
    takeBack: () => say('update_display_data', { [INPUT_OVER_MIME_TYPE]: {} }),
    say
  };
}

describe('closeInputBoxes', () => {
  it('takes the open box away, and lets cells run again', () => {
    const [answered, asked] = [box('jp-OutputArea-stdin-hiding'), box()];
    const notebook = open([answered, asked]);
    notebook.say('update_display_data', { 'text/plain': '' });
    notebook.say('stream', {});
    expect(asked.isDisposed).toBe(false);
    notebook.takeBack();
    expect([answered.isDisposed, asked.isDisposed]).toEqual([false, true]);
    expect(notebook.removeInputGuard).toHaveBeenCalledOnce();
  });

  it('takes the next box away if the message is here before it', async () => {
    vi.useFakeTimers();
    const widgets: Widget[] = [];
    const notebook = open(widgets);
    notebook.takeBack();
    notebook.pendingInput.emit(true);
    const late = box();
    widgets.push(late);
    await vi.runAllTimersAsync();
    expect(late.isDisposed).toBe(true);
    const next = box();
    widgets.splice(0, 1, next);
    notebook.pendingInput.emit(true);
    await vi.runAllTimersAsync();
    expect(next.isDisposed).toBe(false);
    vi.useRealTimers();
  });
});
