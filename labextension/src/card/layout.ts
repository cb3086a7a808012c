/** Cells with number, state and activity; with number and glyph; or plain squares. */
export type CellSize = 'large' | 'medium' | 'small';

/** One line of cells. A long dimension is broken into several lines; only the first of them has a label. */
export interface IRow {
  label: string;
  /** The label of the line for screen readers: "hosts=3". */
  name: string;
  ranks: number[];
}

/** The cells of one point of the outer dimensions, in groups of lines that may stand side by side. */
export interface IBlock {
  label: string;
  groups: IRow[][];
}

export interface ILayout {
  size: CellSize;
  /** Dimension that goes down, or none; and the one that goes to the right. */
  down: string;
  right: string;
  blocks: IBlock[];
}

type Sizes = readonly (readonly [string, number])[];

const MAX_LARGE = 8;
const MAX_MEDIUM = 64;
/** So that a line fits into a sidebar. */
const PER_LINE: Record<CellSize, number> = { large: 4, medium: 8, small: 16 };
const LINES_PER_GROUP: Record<CellSize, number> = { large: 8, medium: 8, small: 32 };
/** Number only some lines: small ones are too close. */
const LABEL_EVERY = 4;

/**
 * Return the layout of the ranks: the innermost dimension to the right, the next one down, one block for each
 * point of the others. Dimensions of size one are left out.
 */
export function layOut(sizes: Sizes, numRanks: number, compact = false): ILayout {
  const dims = usedDims(sizes, numRanks);
  const [right, numRight] = dims[dims.length - 1];
  const size = cellSize(numRanks, compact);
  const perLine = lineLength(numRight, PER_LINE[size]);
  if (dims.length === 1) {
    const rows = lines(0, numRight, perLine).map(ranks => ({
      // Other cells have their numbers.
      label: size === 'small' ? String(ranks[0]) : '',
      name: `${right}=${ranks[0]}-${ranks[ranks.length - 1]}`,
      ranks
    }));
    return { size, down: '', right, blocks: [{ label: '', groups: grouped(thinned(rows, size), 1, size) }] };
  }
  const [down, numDown] = dims[dims.length - 2];
  const blocks = points(dims.slice(0, -2)).map((label, block) => {
    const rows: IRow[] = [];
    for (let row = 0; row < numDown; row++) {
      const first = (block * numDown + row) * numRight;
      for (const ranks of lines(first, numRight, perLine)) {
        rows.push({ label: ranks[0] === first ? String(row) : '', name: `${down}=${row}`, ranks });
      }
    }
    const numPieces = Math.ceil(numRight / perLine);
    return { label, groups: grouped(numPieces > 1 ? rows : thinned(rows, size), numPieces, size) };
  });
  return { size, down, right, blocks };
}

/** Return a rank's coordinates: "hosts=1, gpus=3"; empty if the dimensions aren't known. */
export function coordinates(sizes: Sizes, rank: number): string {
  let rest = rank;
  const parts: string[] = [];
  for (const [name, size] of [...sizes].reverse()) {
    parts.unshift(`${name}=${rest % size}`);
    rest = Math.floor(rest / size);
  }
  return rest === 0 ? parts.join(', ') : '';
}

function usedDims(sizes: Sizes, numRanks: number): Sizes {
  const isWhole = sizes.reduce((product, [, size]) => product * size, 1) === numRanks;
  const used = sizes.filter(([, size]) => size > 1);
  return isWhole && used.length > 0 ? used : [[sizes.length === 1 ? sizes[0][0] : 'ranks', numRanks]];
}

function cellSize(numRanks: number, compact: boolean): CellSize {
  if (numRanks <= MAX_LARGE && !compact) {
    return 'large';
  }
  return numRanks <= MAX_MEDIUM ? 'medium' : 'small';
}

/** Return how many cells go into a line: an even division if there's one that isn't too narrow. */
function lineLength(num: number, most: number): number {
  if (num <= most) {
    return num;
  }
  for (let length = most; length >= most / 2; length--) {
    if (num % length === 0) {
      return length;
    }
  }
  return most;
}

function lines(first: number, num: number, perLine: number): number[][] {
  const found: number[][] = [];
  for (let start = 0; start < num; start += perLine) {
    found.push(Array.from({ length: Math.min(perLine, num - start) }, (_, i) => first + start + i));
  }
  return found;
}

function thinned(rows: IRow[], size: CellSize): IRow[] {
  if (size !== 'small' || rows.length <= 8) {
    return rows;
  }
  return rows.map((row, i) => (i % LABEL_EVERY === 0 ? row : { ...row, label: '' }));
}

/** Cut lines into groups of about the same height, but never between lines that belong together. */
function grouped(rows: IRow[], numPieces: number, size: CellSize): IRow[][] {
  const numGroups = Math.ceil(rows.length / LINES_PER_GROUP[size]);
  const step = Math.ceil(rows.length / numGroups / numPieces) * numPieces;
  const rounded = size === 'small' && numPieces === 1 ? Math.ceil(step / LABEL_EVERY) * LABEL_EVERY : step;
  const groups: IRow[][] = [];
  for (let start = 0; start < rows.length; start += rounded) {
    groups.push(rows.slice(start, start + rounded));
  }
  return groups;
}

/** Return the points of dimensions, in row-major order: "pp=0, dp=1"; one empty point for no dimensions. */
function points(dims: Sizes): string[] {
  return dims.reduce<string[]>(
    (outer, [name, size]) =>
      outer.flatMap(label =>
        Array.from({ length: size }, (_, i) => (label ? `${label}, ${name}=${i}` : `${name}=${i}`))
      ),
    ['']
  );
}
