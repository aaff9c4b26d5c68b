// @ts-check
// Loss and a metric over the steps, with bans and pauses. uPlot (vendor/, MIT licence) draws the curves.

import { roomFor } from "./gridscale.js";
import { upTo } from "./history.js";
import { palette } from "./theme.js";
import { byId, figure, isLoss, isShare, listed, make, metric, metricName, say, shown, whole } from "./words.js";

/* global uPlot */

export function startChart({ choose, repaint }) {
  const box = byId("chart");
  const pick = byId("metric");
  let chart = null;
  let made = ""; // what the chart was made for
  let drawn = { length: -1, steps: null }; // the data that it holds
  let view = null;
  let wanted = null; // the metric that was chosen
  const veil = make("div", { class: "veil" }); // over what comes after the chosen step; the curves need not be drawn again for it

  pick.addEventListener("change", () => {
    wanted = pick.value;
    repaint();
  });
  const size = { width: box.clientWidth, height: box.clientHeight };
  new ResizeObserver(() => {
    size.width = box.clientWidth;
    size.height = box.clientHeight;
    repaint();
  }).observe(box);
  byId("chart-legend").append(...chartLegend());

  function shownMetric() {
    const names = [...view.history.metrics.keys()];
    return names.includes(wanted) ? wanted : (names.find((name) => /accuracy/i.test(name)) ?? names[0] ?? null);
  }

  function build(name) {
    chart?.destroy();
    chart = new uPlot(options(name), columns(name), box);
    chart.over.append(veil);
    chart.over.addEventListener("click", () => {
      if (chart.cursor.idx !== null && chart.cursor.idx !== undefined) choose(chart.cursor.idx);
    });
  }

  function columns(name) {
    const { history } = view;
    return [history.step, history.loss, name === null ? history.loss.map(() => null) : history.metrics.get(name)];
  }

  function options(name) {
    const colours = palette();
    const axis = (more) => ({
      stroke: colours.quiet, font: "12px system-ui, sans-serif", gap: 4, ticks: { stroke: colours.line, size: 4 },
      grid: { stroke: colours.line, width: 1 }, ...more,
    });
    const percent = name !== null && isShare(name);
    const own = name !== null && !isLoss(name); // losses share an axis: they are of one unit
    return {
      ...size, padding: [18, own ? 4 : 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { size: 7 } },
      scales: { x: { time: false, range: () => xRange(view) }, metric: percent ? { range: [0, 1] } : {} },
      axes: [
        axis({ size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] }),
        axis({ scale: "loss", size: 52, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : figure(tick))) }),
        axis({
          scale: "metric", side: 1, size: 52, grid: { show: false }, show: own,
          values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : percent ? Math.round(tick * 100) + "\u202f%" : figure(tick))),
        }),
      ],
      series: [
        {},
        { scale: "loss", stroke: colours.loss, width: 1.75, points: { show: false } },
        { scale: own ? "metric" : "loss", stroke: colours.metric, width: 1.75, dash: [7, 4], spanGaps: true, points: { show: false } },
      ],
      hooks: {
        drawClear: [(plot) => drawPauses(plot, view.history, colours)],
        draw: [(plot) => drawBans(plot, view, colours)],
        setCursor: [() => tell(name)],
      },
    };
  }

  function tell(name) {
    const hovered = chart?.cursor?.idx;
    const at = hovered === null || hovered === undefined ? view.column : hovered;
    say(byId("chart-words"), pointWords(view.history, at, name));
  }

  return {
    update(next) {
      view = next;
      const { history } = view;
      const name = shownMetric();
      offer(pick, [...history.metrics.keys()], name);
      byId("metric-label").hidden = history.metrics.size < 2;
      if (!history.length || size.width === 0) return;
      const now = [name, palette().ink, history.metrics.size > 0].join(" ");
      if (now !== made || !chart) {
        build(name);
        made = now;
      } else if (chart.width !== size.width || chart.height !== size.height) {
        chart.setSize({ ...size });
      }
      if (drawn.length !== history.length || drawn.steps !== history.step || drawn.over !== view.over) chart.setData(columns(name));
      else if (drawn.bans !== upTo(history.bans, view.column)) chart.redraw(false, false); // names of bans come and go
      coverLater(chart, veil, view);
      drawn = { length: history.length, steps: history.step, over: view.over, bans: upTo(history.bans, view.column) };
      say(byId("chart-legend").querySelector(".metric-word"), name === null ? "no metric yet" : metricName(name));
      tell(name);
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", chartWords(view, name));
    },
  };
}

function coverLater(chart, veil, { history, column }) {
  veil.hidden = !(column >= 0 && column < history.length - 1);
  if (!veil.hidden) veil.style.setProperty("left", Math.round(chart.valToPos(history.step[column], "x")) + "px");
}

function xRange({ history, over }) {
  const first = history.step[0] ?? 0;
  const last = history.step[history.length - 1] ?? 1;
  return [first, Math.max(last, first + roomFor(history.length, history.began?.of ?? 0, over) - 1, first + 1)];
}

/** Steps in which the model did not move. */
function drawPauses(plot, history, colours) {
  const pen = plot.ctx;
  const { left, top, width, height } = plot.bbox;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  for (const pause of history.pauses) {
    const from = plot.valToPos(history.step[pause.from] - 0.5, "x", true);
    const to = Math.max(from + 2, plot.valToPos(history.step[pause.to] + 0.5, "x", true));
    pen.fillStyle = colours.faint;
    pen.fillRect(from, top, to - from, height);
    pen.strokeStyle = colours.line;
    pen.save();
    pen.beginPath();
    pen.rect(from, top, to - from, height);
    pen.clip();
    pen.beginPath();
    for (let x = from - height; x < to; x += 8) {
      pen.moveTo(x, top + height);
      pen.lineTo(x + height, top);
    }
    pen.stroke();
    pen.restore();
  }
  pen.restore();
}

/** A line for each ban; those that are too close for their names share one. */
function drawBans(plot, { history, column }, colours) {
  const pen = plot.ctx;
  const ratio = devicePixelRatio || 1;
  const { left, top, width, height } = plot.bbox;
  pen.save();
  pen.font = "600 " + 12 * ratio + "px system-ui, sans-serif";
  pen.textBaseline = "bottom";
  pen.strokeStyle = pen.fillStyle = colours.ban;
  pen.lineWidth = 1.25 * ratio;
  pen.setLineDash([4 * ratio, 3 * ratio]);
  const labels = []; // { x, name, more }: names end at their lines, so that no name reaches into what comes later
  for (const ban of history.bans) {
    const x = plot.valToPos(history.step[ban.at], "x", true);
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, top + height);
    pen.stroke();
    if (ban.at > column) continue; // its line is veiled; its name would tell too early
    const name = "\u00d7 " + shown(history.peers[ban.row].name, 10);
    const last = labels[labels.length - 1];
    if (last && x - last.x < pen.measureText(name + " and 00 more").width) Object.assign(last, { x, more: last.more + 1 });
    else labels.push({ x, name, more: 0 });
  }
  for (const { x, name, more } of labels) {
    const text = name + (more ? " and " + more + " more" : "");
    pen.fillText(text, Math.max(left - 40 * ratio, x + 4 * ratio - pen.measureText(text).width), top - 2 * ratio);
  }
  pen.restore();
}

function pointWords(history, at, name) {
  if (at < 0 || at >= history.length) return "";
  let words = "Step " + whole(history.step[at]) + ": batch loss " + figure(history.loss[at]);
  if (name !== null) words += ", " + metricName(name) + " " + metric(name, history.metricAt(name, at));
  const banned = history.bans.filter((ban) => ban.at === at).map((ban) => history.peers[ban.row].name);
  if (banned.length) words += ". Banned: " + listed(banned, 3);
  if (history.pauses.some((pause) => pause.from <= at && at <= pause.to)) words += ". The model did not move";
  return words + ".";
}

function chartWords({ history, column }, name) {
  const bans = history.bans.filter((ban) => ban.at <= column);
  const steps = bans.slice(-8).map((ban) => shown(history.peers[ban.row].name) + " in step " + whole(history.step[ban.at]));
  return (
    "Batch loss from " + figure(history.loss[0]) + " in step " + whole(history.step[0]) + " to " + figure(history.loss[column]) +
    " in step " + whole(history.step[column]) + ". " +
    (name === null ? "" : metricName(name) + " " + metric(name, history.metricAt(name, column)) + ". ") +
    (steps.length ? "Bans: " + steps.join(", ") + "." : "No bans.")
  );
}

function chartLegend() {
  const entry = (kind, ...words) => make("span", {}, make("span", { class: "stroke " + kind, "aria-hidden": "true" }), ...words);
  return [
    entry("loss", "batch loss"),
    entry("metric", make("span", { class: "metric-word" })),
    entry("ban", "\u00d7 ban"),
    entry("pause", "the model did not move"),
  ];
}

function offer(pick, names, chosen) {
  if (pick.childElementCount !== names.length) {
    pick.replaceChildren(...names.map((name) => make("option", { value: name }, metricName(name))));
  }
  if (chosen !== null) pick.value = chosen;
}
