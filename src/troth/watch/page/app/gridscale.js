// @ts-check
// How large cells are, and where: from one step in 18 pixels to 1,024 steps in two.

const ZOOMS = [
  [5, 2], [5, 4], [4, 2], [4, 4], [3, 2], [3, 4], [2, 2], [2, 4], [1, 2], [1, 4],
  [0, 2], [0, 3], [0, 5], [0, 8], [0, 12], [0, 18],
]; // level of the cells, pixels a column
const ROUND = [1, 1.5, 2, 3, 4, 6, 8];
const WIDEST = 22; // pixels of a column
const HEIGHT = 520; // pixels that the rows may take before they scroll

/** Steps to leave room for, so that a growing run does not change its scale with every step. */
export function roomFor(length, of, over) {
  if (over) return Math.max(1, length);
  let room = 60;
  for (let power = 10; room < length; power *= 10) room = power * (ROUND.find((factor) => factor * power >= length) ?? 10);
  return Math.max(length, Math.min(room, Math.max(of + 1, length)), 1);
}

export class GridScale {
  constructor() {
    this.zoom = null; // an index of ZOOMS; null: whatever shows all
    this.axis = 22;
    this.gutter = 90;
    this.rows = 0;
    this.width = 300;
    this.fit(1, 1, 300);
  }

  /** Find the sizes for so many steps and rows in a box of this width. */
  fit(room, rows, width) {
    this.width = width;
    this.rows = rows;
    this.room = room;
    const least = Math.max(3, Math.min(22, Math.floor(HEIGHT / Math.max(1, rows))));
    this.gutter = width < 500 ? 64 : 96;
    this.fitting = this.#fitting();
    const [level, narrow] = ZOOMS[this.zoom ?? this.fitting];
    // What shows all may as well fill the width.
    const most = level === 0 ? WIDEST : 2 * narrow - 1;
    const pixels = this.zoom !== null ? narrow : Math.max(narrow, Math.min(most, Math.floor((width - this.gutter) / this.columns(room, level))));
    this.level = level;
    this.column = pixels;
    this.row = pixels >= 12 ? Math.max(least, 16) : least;
    this.total = { width: this.gutter + this.columns(room) * pixels, height: this.axis + rows * this.row };
  }

  #fitting() {
    for (let zoom = ZOOMS.length - 1; zoom > 0; zoom--) {
      const [level, pixels] = ZOOMS[zoom];
      if (Math.ceil(this.room / 4 ** level) * pixels <= this.width - this.gutter) return zoom;
    }
    return 0;
  }

  /** Nearer or further; whether anything changed. */
  change(by) {
    const before = this.zoom ?? this.fitting;
    const after = Math.max(0, Math.min(ZOOMS.length - 1, before + by));
    this.zoom = after;
    return after !== before;
  }

  columns(steps, level = this.level) {
    return Math.ceil(steps / 4 ** level);
  }

  /** Drawn column of a step's column. */
  of(at) {
    return at >> (2 * this.level);
  }

  /** First and last step's column in a drawn one. */
  span(column, length) {
    return [column << (2 * this.level), Math.min(length - 1, ((column + 1) << (2 * this.level)) - 1)];
  }

  get large() {
    return this.column >= 9 && this.row >= 9;
  }
}
