// @ts-check
// The grid of peers and steps: scrolling, zoom, mouse and keys. `griddraw.js` paints it.

import { ABSENT, BANNED, CELLS, CLEAN, CONTRIBUTED } from "./cells.js";
import { drawGrid } from "./griddraw.js";
import { GridScale, roomFor } from "./gridscale.js";
import { palette } from "./theme.js";
import { byId, make, say, shown, whole } from "./words.js";

export function startGrid({ choose, repaint }) {
  const box = byId("grid-box");
  const space = byId("grid-space");
  const canvas = byId("grid-canvas");
  const scale = new GridScale();
  let view = null;
  let cursor = null; // { column, row } of the drawn grid
  let laid = ""; // the size that the space to scroll in has
  let seen = -2; // the chosen column that was scrolled to

  byId("grid-legend").append(...legend());
  byId("zoom-in").addEventListener("click", () => zoom(1));
  byId("zoom-out").addEventListener("click", () => zoom(-1));
  byId("zoom-fit").addEventListener("click", () => zoom(0));
  // Sizes and places are kept: to ask for them in the middle of a frame would have the whole page laid out at once.
  const size = { width: box.clientWidth, height: box.clientHeight };
  const scrolled = { left: 0, top: 0 };
  box.addEventListener("scroll", onScroll, { passive: true });
  new ResizeObserver(() => {
    size.width = box.clientWidth;
    size.height = box.clientHeight;
    repaint();
  }).observe(box);
  box.addEventListener("pointermove", (event) => point(event));
  box.addEventListener("pointerleave", () => {
    if (document.activeElement !== box) cursor = null;
    tell();
    repaint();
  });
  box.addEventListener("click", (event) => {
    point(event);
    if (cursor) choose(lastOf(cursor.column));
  });
  box.addEventListener("keydown", onKey);

  function onScroll() {
    scrolled.left = box.scrollLeft;
    scrolled.top = box.scrollTop;
    repaint();
  }

  function onKey(event) {
    if (!view || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      PageUp: [0, -10], PageDown: [0, 10], Home: [-Infinity, 0], End: [Infinity, 0],
    };
    const move = moves[event.key];
    if (move) walk(event.shiftKey ? move[0] * 10 : move[0], event.shiftKey ? move[1] * 10 : move[1]);
    else if (event.key === "+" || event.key === "=") zoom(1);
    else if (event.key === "-") zoom(-1);
    else if (event.key === "0") zoom(0);
    else if (event.key === "Enter" && cursor) choose(lastOf(cursor.column));
    else return;
    event.preventDefault();
    event.stopPropagation(); // the page's own keys would move the step, too
  }

  function walk(right, down) {
    const columns = view.history.cells.columnsAt(scale.level);
    if (!columns) return;
    const from = cursor ?? { column: scale.of(view.column) - Math.sign(right), row: -Math.sign(down) };
    cursor = {
      column: Math.max(0, Math.min(columns - 1, from.column + right)),
      row: Math.max(0, Math.min(view.history.peers.length - 1, from.row + down)),
    };
    reveal(cursor.column);
    const y = cursor.row * scale.row;
    const high = size.height - scale.axis - scale.row;
    if (y < scrolled.top) scrollTo(scrolled.left, y);
    else if (y > scrolled.top + high) scrollTo(scrolled.left, y - high);
    tell();
    say(byId("grid-cell"), byId("grid-words").textContent ?? "");
    repaint();
  }

  function point(event) {
    const edge = canvas.getBoundingClientRect();
    const x = event.clientX - edge.left - scale.gutter + scrolled.left;
    const y = event.clientY - edge.top - scale.axis + scrolled.top;
    const column = Math.floor(x / scale.column);
    const row = Math.floor(y / scale.row);
    const inside = view && event.clientX - edge.left >= scale.gutter && event.clientY - edge.top >= scale.axis;
    cursor = inside && column < view.history.cells.columnsAt(scale.level) && row < view.history.peers.length ? { column, row } : null;
    tell();
    repaint();
  }

  function zoom(by) {
    if (!view) return;
    const middle = cursor ? lastOf(cursor.column) : view.column;
    const row = cursor?.row;
    if (by === 0) scale.zoom = null;
    else scale.change(by);
    layOut();
    cursor = row === undefined ? null : { column: scale.of(middle), row };
    scrollTo((scale.of(middle) + 0.5) * scale.column - (size.width - scale.gutter) / 2, scrolled.top);
    repaint();
  }

  function reveal(column) {
    const x = column * scale.column;
    const wide = size.width - scale.gutter;
    if (x < scrolled.left) scrollTo(x - wide / 4, scrolled.top);
    else if (x + scale.column > scrolled.left + wide) scrollTo(x + scale.column - wide * (view.following ? 1 : 0.75), scrolled.top);
  }

  function scrollTo(left, top) {
    box.scrollTo(left, top);
    onScroll(); // what became of it, within the bounds of the box
  }

  function lastOf(column) {
    return scale.span(column, view.history.length)[1];
  }

  function tell() {
    if (!view) return;
    say(byId("grid-words"), cursor ? cellWords(view, scale, cursor) : summary(view));
  }

  function layOut() {
    const { history } = view;
    scale.fit(roomFor(history.length, history.began?.of ?? 0, view.over), history.peers.length, size.width);
    const now = scale.total.width + " " + scale.total.height;
    if (now === laid) return;
    laid = now;
    space.style.setProperty("width", scale.total.width + "px");
    space.style.setProperty("height", scale.total.height + "px");
  }

  return {
    update(next) {
      view = next;
      layOut();
      if (seen !== view.column && view.column >= 0) reveal(scale.of(view.column));
      seen = view.column;
      byId("grid-legend").classList.toggle("liars", view.history.peers.some((peer) => peer.liar));
      tell();
      if (size.width === 0) return; // not laid out yet: there is nothing to draw on
      drawGrid(canvas, {
        history: view.history, scale, cursor,
        colours: palette(),
        left: scrolled.left, top: scrolled.top,
        width: size.width, height: Math.min(size.height || 1, scale.total.height),
        chosen: view.column,
      });
    },
  };
}

function cellWords({ history, column: chosen }, scale, { column, row }) {
  const [from, to] = scale.span(column, history.length);
  const peer = history.peers[row];
  if (!peer || from > to) return "";
  const code = history.cells.from(scale.level, column, row);
  const who = shown(peer.name) + (peer.liar ? " (a liar, as this rehearsal knows)" : "");
  const later = to > chosen ? " (after the chosen step)" : "";
  if (from < to) {
    return who + ", steps " + whole(history.step[from]) + " to " + whole(history.step[to]) + ": " + CELLS[code].word + later + ".";
  }
  let words = CELLS[code].words;
  if (code === CLEAN && from === chosen && chosen < history.length - 1) words = CELLS[CONTRIBUTED].words;
  if (code === BANNED) {
    const ban = history.bans.find((one) => one.at === from && one.row === row);
    if (ban?.reason) words += ": " + shown(ban.reason, 160);
  }
  if (code === ABSENT) words += ": it contributed nothing";
  return who + ", step " + whole(history.step[from]) + ": " + words.replace(/\.$/, "") + later + ".";
}

function summary({ history }) {
  if (!history.length) return "";
  return whole(history.peers.length) + " peers, " + whole(history.length) + " steps. Point at a cell, or move with the arrow keys.";
}

function legend() {
  const keys = CELLS.map(({ sign, word }, code) =>
    make("li", {}, make("span", { class: "key key-" + code, "aria-hidden": "true" }, sign), word),
  );
  const liar = make("li", { class: "liar-key" }, make("span", { "aria-hidden": "true" }, "*"), "a liar, where that is known");
  return [...keys.slice(2), ...keys.slice(0, 2), liar];
}
