/** A text of one style. */
export interface ISpan {
  text: string;
  /** CSS classes; empty for plain text. */
  look: string;
}

const COLORS = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];
// Escape sequences of terminals: CSI (of which only colours and bold are used here), OSC.
// eslint-disable-next-line no-control-regex -- control characters are what is looked for
const ESCAPES = /\x1b\[([0-9;:?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]/g;

/** Split a line where its style changes; other escape sequences are removed. */
export function spansOf(line: string): ISpan[] {
  const text = lastWritten(line);
  if (!text.includes('\x1b')) {
    return [{ text, look: '' }];
  }
  const spans: ISpan[] = [];
  let look: ILook = {};
  let from = 0;
  for (const match of text.matchAll(ESCAPES)) {
    push(spans, text.slice(from, match.index), look);
    from = match.index + match[0].length;
    if (match[2] === 'm') {
      look = changed(look, match[1]);
    }
  }
  push(spans, text.slice(from), look);
  return spans;
}

interface ILook {
  color?: string;
  isBold?: boolean;
}

/**
 * A progress bar rewrites its line after a carriage return: a terminal shows the last version.
 */
function lastWritten(line: string): string {
  const parts = line.split('\r').filter(part => part);
  return parts.at(-1) ?? '';
}

function push(spans: ISpan[], text: string, { color, isBold }: ILook): void {
  if (text) {
    const classes = [color ? `mnb-ansi-${color}` : '', isBold ? 'mnb-ansi-bold' : ''];
    spans.push({ text, look: classes.filter(Boolean).join(' ') });
  }
}

function changed(look: ILook, codes: string): ILook {
  const numbers = codes.split(/[;:]/).map(Number);
  let next = { ...look };
  for (let i = 0; i < numbers.length; i++) {
    const n = numbers[i];
    if (n === 38 || n === 48) {
      // 256 colours or RGB: the numbers that follow are no codes.
      i += numbers[i + 1] === 5 ? 2 : 4;
    } else if (n === 0) {
      next = {};
    } else if (n === 1 || n === 22) {
      next.isBold = n === 1;
    } else if ((n >= 30 && n <= 37) || (n >= 90 && n <= 97)) {
      next.color = COLORS[n % 10];
    } else if (n === 39) {
      next.color = undefined;
    }
  }
  return next;
}
