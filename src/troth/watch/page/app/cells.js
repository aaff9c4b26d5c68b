// @ts-check
// What a peer was in a step, a byte for each, and the same seen from further away.

// Numbered by how much they matter: from far away a cell shows the greatest of its steps, so that a ban never disappears.
export const NOT_YET = 0;
export const GONE = 1;
export const CONTRIBUTED = 2;
export const VALIDATED = 3;
export const CLEAN = 4;
export const PROBATION = 5;
export const ABSENT = 6;
export const ACCUSED = 7;
export const EXPELLED = 8;
export const BANNED = 9;

/** Sign in large cells and in the legend; word in the legend; words in the sentence about a cell. */
export const CELLS = [
  { sign: "", word: "not yet a member", words: "was not a member yet" },
  { sign: "", word: "no longer a member", words: "was no longer a member" },
  { sign: "\u00b7", word: "contributed", words: "contributed a gradient" },
  { sign: "V", word: "validator, audits", words: "was a validator: it audited instead of contributing" },
  { sign: "\u2713", word: "audited and clean", words: "contributed a gradient, which was audited and found clean" },
  { sign: "P", word: "on probation", words: "was on probation" },
  { sign: "\u2013", word: "absent", words: "was absent" },
  { sign: "!", word: "accused, not convicted", words: "was accused, and not convicted" },
  { sign: "E", word: "expelled", words: "was expelled, without a ban" },
  { sign: "\u00d7", word: "banned", words: "was banned" },
];

export const LEVELS = 6; // 1, 4, 16, 64, 256 and 1024 steps a column

/** Columns of bytes that grow in both directions, at six distances. */
export class Cells {
  constructor() {
    this.columns = 0;
    this.rows = 0;
    this.stride = 16;
    this.levels = Array.from({ length: LEVELS }, () => new Uint8Array(16 * 64));
  }

  /** Take in another peer, which was nothing so far. */
  addRow() {
    if (this.rows === this.stride) this.#widen();
    return this.rows++;
  }

  addColumn() {
    const column = this.columns++;
    for (let level = 0; level < LEVELS; level++) {
      const needed = ((column >> (2 * level)) + 1) * this.stride;
      if (needed > this.levels[level].length) this.levels[level] = grown(this.levels[level], needed);
    }
    return column;
  }

  raise(column, row, code) {
    for (let level = 0; level < LEVELS; level++) {
      const at = (column >> (2 * level)) * this.stride + row;
      if (this.levels[level][at] >= code) break; // further away it matters at least as much
      this.levels[level][at] = code;
    }
  }

  /** Take back what a cell was said to be; further away, the greatest of what is left counts. */
  lower(column, row, code) {
    this.levels[0][column * this.stride + row] = code;
    for (let level = 1; level < LEVELS; level++) {
      const first = (column >> (2 * level)) * 4;
      const last = Math.min(first + 4, this.columnsAt(level - 1));
      let greatest = NOT_YET;
      for (let near = first; near < last; near++) greatest = Math.max(greatest, this.from(level - 1, near, row));
      this.levels[level][(first / 4) * this.stride + row] = greatest;
    }
  }

  at(column, row) {
    return this.levels[0][column * this.stride + row];
  }

  /** The greatest of the column's steps, where a column is 4 ** level steps. */
  from(level, column, row) {
    return this.levels[level][column * this.stride + row];
  }

  columnsAt(level) {
    return this.columns === 0 ? 0 : ((this.columns - 1) >> (2 * level)) + 1;
  }

  /** Forget the columns from this one on. */
  cut(columns) {
    const nearest = this.levels[0];
    nearest.fill(0, columns * this.stride);
    for (let level = 1; level < LEVELS; level++) this.levels[level].fill(0, (columns >> (2 * level)) * this.stride);
    this.columns = columns;
    const again = Math.floor(columns / 1024) * 1024; // columns that share a far one with a column that went
    for (let column = again; column < columns; column++) {
      for (let row = 0; row < this.rows; row++) {
        const code = nearest[column * this.stride + row];
        for (let level = 1; level < LEVELS; level++) {
          const at = (column >> (2 * level)) * this.stride + row;
          if (this.levels[level][at] < code) this.levels[level][at] = code;
        }
      }
    }
  }

  #widen() {
    const wider = this.stride * 2;
    this.levels = this.levels.map((old, level) => {
      const columns = this.columnsAt(level);
      const fresh = new Uint8Array(Math.max(64, columns) * wider);
      for (let column = 0; column < columns; column++) {
        fresh.set(old.subarray(column * this.stride, (column + 1) * this.stride), column * wider);
      }
      return fresh;
    });
    this.stride = wider;
  }
}

function grown(old, needed) {
  const fresh = new Uint8Array(Math.max(needed, old.length * 2));
  fresh.set(old);
  return fresh;
}
