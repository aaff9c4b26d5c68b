// @ts-check
// The head of the page: which run, how far, who, and what it withstands now. And what screen readers hear of it.

import { upTo } from "./history.js";
import { byId, count, figure, listed, make, metric, say, shown, whole } from "./words.js";

const STATES = {
  waiting: "connecting", live: "live", past: "the past", over: "over", lost: "connection lost", paused: "paused",
};
const ENDS = { __proto__: null, over: "over", stopped: "stopped", out: "this peer is out", error: "failed", lost: "gone silent" };
const SOURCES = { __proto__: null, member: "a member", swarm: "a swarm on one machine", simulation: "a simulation", journal: "a member's journal" };

export function startHeader() {
  const figures = new Map();
  let heard = null; // what was announced: { bans, state }

  function put(term, value, more = "") {
    let pair = figures.get(term);
    if (!pair) {
      const words = make("small");
      const number = make("span");
      byId("figures").append(make("div", {}, make("dt", {}, term), make("dd", {}, number, " ", words)));
      pair = { number, words };
      figures.set(term, pair);
    }
    say(pair.number, value);
    say(pair.words, more);
  }

  return {
    update(view) {
      const { history, column } = view;
      const state = stateOf(view);
      byId("state").dataset.state = state;
      const word = state === "over" ? (ENDS[history.ended?.how || view.ending] ?? (view.report ? "not over" : "over")) : STATES[state];
      say(byId("state-word"), state === "past" && view.playing ? "replay" : word);
      announce(view, state, word);
      trouble(view);
      if (!history.began) return;
      const { began } = history;
      const name = shown(began.name || began.task || "A run", 60);
      say(byId("run-name"), name);
      say(byId("run-task"), runWords(began));
      document.title = (column < 0 ? "" : "Step " + whole(history.step[column]) + " \u00b7 ") + name + " \u00b7 Troth";
      if (column < 0) return;
      const first = history.peers.filter((peer) => peer.founder).length;
      put("Step", whole(history.step[column]));
      put("Updates", whole(history.updates[column]), "of " + whole(Math.max(began.of, history.updates[column])));
      put("Members", whole(history.members[column]), "began with " + whole(first));
      const withstands = history.withstands[column];
      put("Withstands now", withstands === null ? "nothing" : count(withstands, "liar"), withstands === null ? "promised" : withstands === 0 && began.withstands ? "all " + whole(began.withstands) + " are found" : "");
      put("Quorum", history.quorum[column] ? whole(history.quorum[column]) : "\u2013", history.quorum[column] ? "votes" : "");
      put("Loss", figure(history.loss[column]));
      for (const metricName of [...history.metrics.keys()].filter((one) => /accuracy/i.test(one)).slice(0, 1)) {
        put("Accuracy", metric(metricName, history.metricAt(metricName, column)));
      }
      put("Bans", whole(upTo(history.bans, column)));
    },
  };

  /** Bans and changes of state are worth an interruption; steps are not. */
  function announce({ history, column, loading }, state, word) {
    const bans = history.bans.length;
    if (loading || column < 0) return;
    if (heard !== null && bans > heard.bans) {
      const names = history.bans.slice(heard.bans).map((ban) => history.peers[ban.row].name);
      say(byId("announce"), "Banned in step " + whole(history.step[history.bans[bans - 1].at]) + ": " + listed(names, 4) + ".");
    } else if (heard !== null && state !== heard.state && (state !== "past" || heard.state !== "live")) {
      say(byId("announce"), "The run is now: " + word + ".");
    }
    heard = { bans, state };
  }
}

/** `past` where an earlier step is looked at, whatever the run does meanwhile. */
function stateOf({ history, connection, following, column, status }) {
  if (connection === "lost") return "lost";
  if (!history.began) return "waiting";
  if (!following && column < history.length - 1) return "past";
  if (history.ended || connection === "ended") return "over";
  return status && status.doing === "paused" ? "paused" : "live";
}

function runWords(began) {
  const words = [];
  if (began.task && began.name) words.push(shown(began.task, 60));
  if (began.defence !== "troth") words.push("defence " + shown(began.defence, 40));
  if (SOURCES[began.source]) {
    words.push("told by " + SOURCES[began.source] + (began.me && began.source !== "simulation" ? ", " + shown(began.me) : ""));
  }
  if (began.run) words.push("run " + shown(began.run, 12));
  return words.join(" \u00b7 ");
}

function trouble({ history, connection, ending, report }) {
  const words = [];
  if (connection === "lost") words.push("The connection to the server is lost. The page tries again by itself; what it shows is the last it heard.");
  if (ending === "lost") words.push("Whoever told this is silent: its process is gone, or hangs. If it goes on, so does the page.");
  if (history.unkept) words.push("The run is longer than a page can hold: " + count(history.unkept, "step") + " are not shown.");
  if (history.skipped) words.push(count(history.skipped, "event") + " could not be read, and " + (history.skipped === 1 ? "was" : "were") + " skipped.");
  if (history.ended?.how === "error" && history.ended.text) words.push("The run failed: " + shown(history.ended.text, 300));
  if (report && typeof DecompressionStream === "undefined") words.push("This browser is too old to unpack the report.");
  const box = byId("trouble");
  box.hidden = words.length === 0;
  say(box, words.join(" "));
}
