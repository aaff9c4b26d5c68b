// @ts-check
// The head of the page: which run, how far, who, and what it withstands now. And what screen readers hear of it.

import { doingNow, notConnected } from "./banner.js";
import { upTo } from "./history.js";
import { byId, count, figure, lasted, listed, make, metric, say, shown, whole } from "./words.js";

const STATES = {
  waiting: "connecting", live: "live", past: "the past", over: "over", lost: "connection lost",
  starts: "starting", diverged: "diverged", meets: "not training", waits: "waiting", paused: "paused",
};
const ENDS = { __proto__: null, over: "over", stopped: "stopped", out: "this peer is out", error: "failed", lost: "gone silent" };
const AS_STATES = { __proto__: null, meeting: "meets", waiting: "waits", paused: "paused" };
const SOURCES = { __proto__: null, member: "a member", swarm: "a swarm on one machine", simulation: "a simulation" };

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
      const how = state === "over" ? history.ended?.how || view.ending : "";
      byId("state").dataset.state = state;
      byId("state").dataset.how = how;
      const word = state === "over" ? (ENDS[how] ?? (view.report ? "not over" : "over")) : STATES[state];
      say(byId("state-word"), state === "past" && view.playing ? "replay" : word);
      announce(view, state, word);
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
      const present = view.following && !view.stale ? view.status : null;
      const away = present ? notConnected(present, history).length : 0;
      put("Members", whole(history.members[column]), away ? whole(away) + " not connected" : "began with " + whole(first));
      const withstands = history.withstands[column];
      put("Withstands now", withstands === null ? "nothing" : count(withstands, "liar"), withstands === null ? "promised" : withstands === 0 && began.withstands ? "all " + whole(began.withstands) + " are found" : "");
      put("Quorum", history.quorum[column] ? whole(history.quorum[column]) : "\u2013", history.quorum[column] ? "votes" : "");
      put("Batch loss", figure(history.loss[column]));
      for (const metricName of [...history.metrics.keys()].filter((one) => /accuracy/i.test(one)).slice(0, 1)) {
        put("Accuracy", metric(metricName, history.metricAt(metricName, column)));
      }
      put("Bans", whole(upTo(history.bans, column)));
      if (present || figures.has("Time left")) put("Time left", present?.left_s ? "about " + lasted(present.left_s) : "\u2013");
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
function stateOf(view) {
  const { history, connection, following, column } = view;
  if (connection === "lost") return "lost";
  if (!history.began) return "waiting";
  if (!following && column < history.length - 1) return "past";
  if (history.ended || connection === "ended") return "over";
  if (!history.length) return "starts";
  return AS_STATES[doingNow(view)] || (history.divergedAt === null ? "live" : "diverged");
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
