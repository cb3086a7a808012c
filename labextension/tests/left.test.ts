import { describe, expect, it } from 'vitest';
import type { IOutput } from '@jupyterlab/nbformat';
import { markOutputs, type Outputs } from '../src/card/left';

const t = (text: string, ...args: unknown[]) =>
  text.replace(/%(\d)/g, (_, n: string) => String(args[Number(n) - 1]));
const WHEN = new Date(2026, 9, 18, 9, 5, 7);

/** As much of a cell's outputs as is asked for; the real ones need a browser. */
class Area {
  readonly length = 1;
  constructor(public output: IOutput) {}
  get = () => ({ toJSON: () => this.output });
  set = (_: number, output: IOutput) => {
    this.output = output;
  };
  mark() {
    markOutputs(this as unknown as Outputs, WHEN, t);
  }
}

function area(metadata: object): Area {
  const data = { 'text/plain': ['step 1\n', 'step 2'], 'text/html': '<b>step</b>' };
  return new Area({ output_type: 'display_data', data, metadata: metadata as never });
}

describe('the output of a cell whose kernel has gone', () => {
  it('says that the cell runs on', () => {
    const left = area({ monarch_nb: { unfinished: 'cell #5 goes on in mesh <x>' }, other: 1 });
    left.mark();
    const { data, metadata } = left.output as unknown as { data: Record<string, string>; metadata: object };
    expect(data['text/plain']).toBe(
      'step 1\nstep 2\nthis kernel was shut down at 09:05:07; cell #5 goes on in mesh <x>'
    );
    expect(data['text/html']).toContain('<b>step</b>');
    expect(data['text/html']).toContain('mesh &lt;x&gt;');
    expect(metadata).toEqual({ other: 1 });
    const marked = left.output;
    left.mark();
    expect(left.output).toBe(marked);
  });

  it('stays as it is if the cell was over', () => {
    const over = area({});
    const before = over.output;
    over.mark();
    expect(over.output).toBe(before);
  });
});
