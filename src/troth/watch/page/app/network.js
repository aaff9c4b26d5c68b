// @ts-check
// Links, this peer's health, newcomers and notes.

import { byId, bytes, clock, count, make, nameOf, say, seconds, shown, whole } from "./words.js";

const MOST_NOTES = 200;
const MOST_LINKS = 400;
const LINK_HEADS = [["Peer"], ["Link", "wide-words"], ["In", "number"], ["Out", "number"], ["Latency", "number"], ["Heard last", "number"], ["Late by", "number"], ["Timeouts", "number"], ["Lost", "number"]];
const DOINGS = { __proto__: null, meeting: "meets the others", training: "trains", waiting: "waits", paused: "pauses", over: "is done", stopped: "has stopped", out: "is out", error: "failed" };

export function startNetwork() {
  const head = LINK_HEADS.map(([word, kind]) => make("th", { scope: "col", class: kind ?? null }, word));
  const body = make("tbody");
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), body);
  const rows = new Map();
  byId("network-body").append(table);
  let drawn = null;

  return {
    update({ history, status, report, stale }) {
      if (drawn === (status ?? history.latest) && !stale) return;
      drawn = status ?? history.latest;
      const links = status ? status.links.slice(0, MOST_LINKS) : [];
      table.hidden = links.length === 0;
      say(byId("network-words"), networkWords(history, status, report) + (stale ? " As of " + clock(status.at) + "." : ""));
      const gone = new Set(rows.keys());
      for (const link of links) {
        gone.delete(link.peer);
        if (!rows.has(link.peer)) rows.set(link.peer, linkRow(link.peer, body));
        fillLink(rows.get(link.peer), link);
      }
      for (const peer of gone) {
        rows.get(peer)[0].parentElement.remove();
        rows.delete(peer);
      }
    },
  };
}

function linkRow(peer, body) {
  const cells = LINK_HEADS.map(([, kind]) => make("td", { class: kind ?? null }));
  cells[0].append(nameOf(peer));
  body.append(make("tr", {}, ...cells));
  return cells;
}

function fillLink(cells, link) {
  cells[0].parentElement.classList.toggle("trouble-row", !link.connected);
  const words = [link.connected ? "connected" : "not connected: " + (shown(link.trouble, 120) || "no reason is known")];
  words.push(bytes(link.received_bytes), bytes(link.sent_bytes), seconds(link.latency_s), whole(link.heard_last), seconds(link.late_s), whole(link.timeouts), whole(link.lost));
  words.forEach((text, at) => say(cells[at + 1], text));
}

function networkWords(history, status, report) {
  if (status) {
    const connected = status.links.filter((link) => link.connected).length;
    return bytes(status.received_bytes) + " in, " + bytes(status.sent_bytes) + " out; " + whole(connected) + " of " + count(status.links.length, "link") + " connected." + perParameter(status);
  }
  const step = history.latest;
  const got = step ? step.control_bytes + step.bulk_bytes : 0;
  if (got || step?.sent_bytes) return bytes(got) + " in, " + bytes(step.sent_bytes) + " out, at the end." + perParameter(step) + " Links are shown while a member runs.";
  return history.began?.source === "simulation" ? "A simulation has no network." : "Links are shown while a member runs" + (report ? ", not in a report." : ".");
}

function perParameter({ received_per_parameter: received, sent_per_parameter: sent }) {
  if (received === null || sent === null) return "";
  const [heard, said] = [received, sent].map((value) => (value >= 100 ? whole(Math.round(value)) : value.toPrecision(2)) + "\u202fB");
  return " In the last steps " + heard + " in, " + said + " out for each parameter and gradient.";
}

export function startHealth() {
  const pairs = make("dl", { class: "pairs" });
  const nobody = make("p", { class: "quiet" }, "Nothing is running here: this is told from what was kept.");
  byId("health-body").append(pairs, nobody);
  let drawn;
  return {
    update({ status, history, stale }) {
      const now = status && (stale ? "stale " : "") + status.at;
      if (drawn === now) return;
      drawn = now;
      pairs.hidden = !status;
      nobody.hidden = Boolean(status);
      const told = status ? healthPairs(status, history) : [];
      if (stale) told.push(["As of", clock(status.at) + "; it says nothing newer"]);
      pairs.replaceChildren(...told.flatMap(([term, words]) => [make("dt", {}, term), make("dd", {}, words)]));
    },
  };
}

function healthPairs(status, history) {
  const pairs = [
    ["Peer", shown(status.me || history.began?.me || "\u2013")],
    ["Now", (DOINGS[status.doing] ?? shown(status.doing, 20)) + (status.text ? ": " + shown(status.text, 200) : "")],
    ["A step takes", seconds(status.seconds)],
    ["\u0394, bound on delays", seconds(status.delta_s)],
    ["Memory", bytes(status.memory_bytes)],
    ["Since", clock(status.started_at) || "\u2013"],
  ];
  return pairs;
}

export function startNewcomers() {
  const box = byId("newcomers-body");
  return {
    update(detail, history) {
      const all = detail.candidates.slice(0, 50);
      if (all.length) {
        box.replaceChildren(...all.map(newcomer));
        return;
      }
      const closed = !history.began?.probation;
      box.replaceChildren(make("p", { class: "quiet" }, closed ? "The door is closed: nobody can join this run." : "Nobody is on probation in this step."));
    },
  };
}

function newcomer({ name, worked, missed, needed }) {
  const bar = document.createElement("progress");
  bar.max = Math.max(1, needed);
  bar.value = Math.min(worked, bar.max);
  bar.setAttribute("aria-label", shown(name) + ": steps worked");
  const words = whole(worked) + " of " + whole(needed) + " steps" + (missed ? ", " + whole(missed) + " missed" : "");
  return make("div", {}, make("p", {}, nameOf(name), make("span", { class: "quiet" }, " \u00b7 " + words)), bar);
}

export function startNotes() {
  const box = byId("notes-list");
  let drawn;
  return {
    update({ history, column }) {
      let told = history.lines.length;
      while (told > 0 && history.lines[told - 1].at > column) told--;
      const marker = told ? history.lines[told - 1] : null;
      if (drawn === marker) return;
      drawn = marker;
      const some = history.lines.slice(Math.max(0, told - MOST_NOTES), told).reverse();
      box.replaceChildren(...some.map((line) => note(line, history)));
      if (!told) box.append(make("p", { class: "quiet" }, "None."));
    },
  };
}

function note(line, history) {
  const when = clock(line.time) || (line.at >= 0 && line.at < history.length ? "step " + whole(history.step[line.at]) : "");
  return make("p", {}, make("span", { class: "when" }, when), make("span", {}, shown(line.text, 600)));
}
