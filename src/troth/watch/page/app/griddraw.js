// @ts-check
// The grid on its canvas. Only what is in sight is drawn: a pixel a cell on a small picture, which the browser enlarges.

import { ACCUSED, BANNED, CELLS, CLEAN, CONTRIBUTED } from "./cells.js";
import { shown, whole } from "./words.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const small = document.createElement("canvas");
const base = document.createElement("canvas");
let drawnBase = [];
let signs = { of: "", pictures: [] };

/** Sight: { history, scale, colours, left, top, width, height, chosen, cursor }, all in pixels of the page. */
export function drawGrid(canvas, sight) {
  const ratio = devicePixelRatio || 1;
  const { width, height, scale } = sight;
  if (fitted(canvas, width, height, ratio)) {
    canvas.style.setProperty("width", width + "px");
    canvas.style.setProperty("height", height + "px");
  }
  const window = inSight(sight);
  drawBase(sight, window, ratio);
  const pen = penOf(canvas, ratio);
  pen.drawImage(base, 0, 0, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(scale.gutter, scale.axis - 3, width - scale.gutter, height - scale.axis + 3);
  pen.clip();
  drawFresh(pen, sight, window, ratio);
  drawChosen(pen, sight);
  if (!scale.large) drawMarks(pen, sight, ratio, sight.chosen); // once more: the veil covered their edges
  pen.restore();
  drawCursorName(pen, sight);
}

/** Everything that does not depend on the chosen step: it is kept while the slider moves. */
function drawBase(sight, window, ratio) {
  const { history, scale, colours, left, top, width, height } = sight;
  const now = [history.step, history.length, history.cells.rows, history.bans.length, colours, scale.level, scale.column, scale.row, left, top, width, height, ratio];
  if (drawnBase.length && now.every((one, at) => one === drawnBase[at])) return;
  drawnBase = now;
  fitted(base, width, height, ratio);
  const pen = penOf(base, ratio);
  pen.fillStyle = colours.card;
  pen.fillRect(0, 0, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(scale.gutter, scale.axis, width - scale.gutter, height - scale.axis);
  pen.clip();
  if (window.columns > 0 && window.rows > 0) drawCells(pen, sight, window, ratio);
  pen.restore();
  drawNames(pen, sight, window);
  drawSteps(pen, sight, window);
}

/** Give a canvas its size; whether that was another one. */
function fitted(canvas, width, height, ratio) {
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width === wide && canvas.height === high) return false;
  canvas.width = wide;
  canvas.height = high;
  return true;
}

function penOf(canvas, ratio) {
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

function inSight({ history, scale, left, top, width, height }) {
  const fromColumn = Math.floor(left / scale.column);
  const fromRow = Math.floor(top / scale.row);
  const columns = history.cells.columnsAt(scale.level);
  return {
    fromColumn,
    fromRow,
    columns: Math.min(columns, Math.ceil((left + width - scale.gutter) / scale.column)) - fromColumn,
    rows: Math.min(history.peers.length, Math.ceil((top + height - scale.axis) / scale.row)) - fromRow,
    x: scale.gutter + fromColumn * scale.column - left,
    y: scale.axis + fromRow * scale.row - top,
  };
}

function drawCells(pen, sight, window, ratio) {
  const { scale, colours } = sight;
  const codes = codesInSight(sight, window);
  small.width = window.columns;
  small.height = window.rows;
  const context = small.getContext("2d");
  const picture = context.createImageData(window.columns, window.rows);
  const pixels = new Uint32Array(picture.data.buffer);
  for (let at = 0; at < codes.length; at++) pixels[at] = colours.pixels[codes[at]];
  context.putImageData(picture, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, window.x, window.y, window.columns * scale.column, window.rows * scale.row);
  drawGaps(pen, sight, window);
  if (scale.large) drawSigns(pen, sight, window, codes, ratio);
  else drawMarks(pen, sight, ratio);
}

function codesInSight({ history, scale }, window) {
  const { columns, rows, fromColumn, fromRow } = window;
  const codes = new Uint8Array(columns * rows);
  const stride = history.cells.stride;
  const cells = history.cells.levels[scale.level];
  for (let column = 0; column < columns; column++) {
    const from = (fromColumn + column) * stride + fromRow;
    for (let row = 0; row < rows; row++) codes[row * columns + column] = cells[from + row];
  }
  return codes;
}

/** In its own step, the chosen one's work has not been audited yet: that is done in the next. */
function drawFresh(pen, { history, scale, colours, chosen }, window, ratio) {
  if (scale.level !== 0 || chosen < 0 || chosen >= history.length - 1) return;
  const size = Math.min(scale.column, scale.row) - 1;
  const gap = Math.min(scale.column, scale.row) < 6 ? 0 : 1;
  const x = window.x + (chosen - window.fromColumn) * scale.column;
  for (let row = window.fromRow; row < window.fromRow + window.rows; row++) {
    if (history.cells.at(chosen, row) !== CLEAN) continue;
    const y = window.y + (row - window.fromRow) * scale.row;
    pen.fillStyle = colours.cells[CONTRIBUTED];
    pen.fillRect(x, y, scale.column - gap, scale.row - gap);
    if (!scale.large) continue;
    const picture = signsOf(size, ratio, colours)[CONTRIBUTED];
    pen.drawImage(picture, x + (scale.column - 1 - size) / 2, y + (scale.row - 1 - size) / 2, size, size);
  }
}

function drawGaps(pen, { scale, colours }, window) {
  if (Math.min(scale.column, scale.row) < 6) return; // gaps would outweigh the cells
  pen.fillStyle = colours.card;
  for (let column = 0; column <= window.columns; column++) {
    pen.fillRect(window.x + column * scale.column - 1, window.y, 1, window.rows * scale.row);
  }
  for (let row = 0; row <= window.rows; row++) {
    pen.fillRect(window.x, window.y + row * scale.row - 1, window.columns * scale.column, 1);
  }
}

function drawSigns(pen, { scale, colours }, window, codes, ratio) {
  const size = Math.min(scale.column, scale.row) - 1;
  const pictures = signsOf(size, ratio, colours);
  const right = (scale.column - 1 - size) / 2;
  const down = (scale.row - 1 - size) / 2;
  for (let row = 0; row < window.rows; row++) {
    for (let column = 0; column < window.columns; column++) {
      const picture = pictures[codes[row * window.columns + column]];
      if (picture) pen.drawImage(picture, window.x + column * scale.column + right, window.y + row * scale.row + down, size, size);
    }
  }
}

/** In small cells bans and accusations have marks that are larger than the cell: two pixels are easily missed. */
function drawMarks(pen, { history, scale, colours, left, top, width, height }, ratio, until = Infinity) {
  const pictures = signsOf(11, ratio, colours);
  const place = ({ at, row }) => [
    scale.gutter + (scale.of(at) + 0.5) * scale.column - left,
    scale.axis + (row + 0.5) * scale.row - top,
  ];
  for (const [marks, code, size] of [[history.accusations, ACCUSED, 9], [history.bans, BANNED, 11]]) {
    for (const mark of marks) {
      if (mark.at > until) break;
      const [x, y] = place(mark);
      if (x < scale.gutter - size || x > width + size || y < -size || y > height + size) continue;
      if (code === ACCUSED && history.cells.at(mark.at, mark.row) !== ACCUSED) continue;
      pen.fillStyle = colours.cells[code];
      pen.fillRect(x - size / 2, y - size / 2, size, size);
      pen.drawImage(pictures[code], x - size / 2, y - size / 2, size, size);
    }
  }
}

/** Signs as pictures: text is slow to draw a thousand times. */
function signsOf(size, ratio, colours) {
  const of = size + " " + ratio + " " + colours.ink;
  if (signs.of === of) return signs.pictures;
  const pictures = CELLS.map(({ sign }, code) => {
    if (!sign) return null;
    const picture = document.createElement("canvas");
    picture.width = picture.height = Math.ceil(size * ratio);
    const pen = picture.getContext("2d");
    pen.font = (code >= ACCUSED ? "700 " : "600 ") + Math.round(picture.width * 0.72) + "px " + FONT;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillStyle = colours.signs[code];
    pen.globalAlpha = code === CONTRIBUTED ? 0.55 : 0.9;
    pen.fillText(sign, picture.width / 2, picture.height * 0.54);
    return picture;
  });
  signs = { of, pictures };
  return pictures;
}

/** The steps after the chosen one are veiled; the chosen one and the cell under the cursor have a frame. */
function drawChosen(pen, { history, scale, colours, left, top, width, height, chosen, cursor }) {
  const x = (column) => scale.gutter + column * scale.column - left;
  const column = scale.of(Math.max(0, chosen));
  if (chosen >= 0 && chosen < history.length - 1) {
    pen.globalAlpha = 0.78;
    pen.fillStyle = colours.card;
    pen.fillRect(x(column + 1), scale.axis, width, height);
    pen.globalAlpha = 1;
  }
  const bottom = Math.min(height, scale.axis + history.peers.length * scale.row - top);
  if (chosen >= 0) {
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(x(column) - 1, scale.axis - 3, Math.max(2, scale.column + 0.5), bottom - scale.axis + 2);
  }
  if (cursor) {
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    const y = scale.axis + cursor.row * scale.row - top;
    pen.strokeRect(x(cursor.column) - 1, y - 1, Math.max(3, scale.column + 1), Math.max(3, scale.row + 1));
  }
}

function drawNames(pen, { history, scale, colours, top }, window) {
  const every = Math.max(1, Math.ceil(13 / scale.row));
  for (let row = Math.ceil(window.fromRow / every) * every; row < window.fromRow + window.rows; row += every) {
    const down = scale.axis + (row + 0.5) * scale.row - top;
    if (down < scale.axis + 4) continue;
    nameRow(pen, history.peers[row], down, scale, colours.quiet, "");
    if (every > 1) pen.fillRect(scale.gutter - 4, down, 3, 1);
  }
}

/** The cursor's row is named, whatever has room there else. */
function drawCursorName(pen, { history, scale, colours, cursor, top }) {
  if (!cursor || cursor.row >= history.peers.length) return;
  const down = scale.axis + (cursor.row + 0.5) * scale.row - top;
  if (down < scale.axis + 4) return;
  pen.fillStyle = colours.card;
  pen.fillRect(0, down - 8, scale.gutter - 5, 16);
  nameRow(pen, history.peers[cursor.row], down, scale, colours.ink, "600 ");
}

function nameRow(pen, peer, down, scale, colour, weight) {
  pen.fillStyle = colour;
  pen.font = weight + "12px " + FONT;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillText(shown(peer.name, scale.gutter < 80 ? 8 : 12) + (peer.liar ? " *" : ""), 0, down, scale.gutter - 6);
}

function drawSteps(pen, { history, scale, colours, left, width }, window) {
  pen.font = "12px " + FONT;
  pen.fillStyle = colours.quiet;
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  const steps = 4 ** scale.level;
  const least = (56 / scale.column) * steps; // steps between two numbers
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  const every = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= least) ?? 10 * power);
  const from = window.fromColumn * steps;
  const to = Math.min(history.length, (window.fromColumn + Math.max(0, window.columns)) * steps);
  for (let at = Math.ceil(from / every) * every; at < to; at += every) {
    const x = scale.gutter + (at / steps) * scale.column - left;
    if (x < scale.gutter - 1 || x > width - 20) continue;
    pen.fillText(whole(history.step[at]), x, 12);
    pen.fillRect(x, 15, 1, 4);
  }
}
