import * as React from 'react';

/**
 * Return the path of a line through percentages, oldest first. Where there was no reading the line is broken;
 * a reading between two gaps is a dot.
 */
export function sparklinePath(values: (number | null)[], width: number, height: number): string {
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  let path = '';
  values.forEach((value, i) => {
    if (value === null) {
      return;
    }
    const point = `${round(i * step)},${round(height * (1 - clamp(value) / 100))}`;
    const hasLeft = i > 0 && values[i - 1] !== null;
    const hasRight = i + 1 < values.length && values[i + 1] !== null;
    path += hasLeft ? `L${point}` : `M${point}${hasRight ? '' : 'h0.01'}`;
  });
  return path;
}

/** The last minutes of one percentage. */
export function Sparkline({ values, label }: { values: (number | null)[]; label: string }): JSX.Element {
  const [width, height] = [48, 14];
  return (
    <svg className="mnb-spark" viewBox={`0 -1 ${width} ${height + 2}`} role="img" aria-label={label}>
      <title>{label}</title>
      <path d={sparklinePath(values, width, height)} />
    </svg>
  );
}

function clamp(value: number): number {
  return Math.min(100, Math.max(0, value));
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
