import { describe, expect, it } from 'vitest';
import { OutputAreaModel } from '@jupyterlab/outputarea';
import { markOutputs } from '../src/left';

const t = (text: string, ...args: unknown[]) => text.replace(/%(\d)/g, (_, n: string) => String(args[Number(n) - 1]));
const WHEN = new Date(2026, 9, 18, 9, 5, 7);

function outputs(metadata: object): OutputAreaModel {
  const data = { 'text/plain': ['step 1\n', 'step 2'], 'text/html': '<b>step</b>' };
  return new OutputAreaModel({
    values: [{ output_type: 'display_data', data, metadata: metadata as never }]
  });
}

describe('the output of a cell whose kernel has gone', () => {
  it('says that the cell runs on', () => {
    const area = outputs({ monarch_nb: { unfinished: 'cell #5 goes on in mesh <x>' }, other: 1 });
    markOutputs(area, WHEN, t);
    const { data, metadata } = area.get(0).toJSON() as { data: Record<string, string>; metadata: object };
    expect(data['text/plain']).toBe(
      'step 1\nstep 2\nthis kernel was shut down at 09:05:07; cell #5 goes on in mesh <x>'
    );
    expect(data['text/html']).toContain('<b>step</b>');
    expect(data['text/html']).toContain('mesh &lt;x&gt;');
    expect(metadata).toEqual({ other: 1 });
    markOutputs(area, WHEN, t);
    expect(area.get(0).data['text/plain']).toBe(data['text/plain']);
  });

  it('stays as it is if the cell was over', () => {
    const area = outputs({});
    const before = area.toJSON();
    markOutputs(area, WHEN, t);
    expect(area.toJSON()).toEqual(before);
  });
});
