// @ts-check
// One banner above everything for what is not training: what it waits for, whom, since when, and what to do.

import { byId, clock, count, lasted, listed, make, say, shown } from "./words.js";

const SAME = "the same command as before";
const AGAIN = `To go on, start it again with ${SAME}: nothing is lost.`;

export function startBanner() {
  const box = byId("trouble");
  const title = make("strong");
  const since = make("span", { class: "since", "aria-hidden": "true" }); // changes every second: not to be read aloud
  const body = make("div");
  box.append(make("p", {}, title, " ", since), body);
  let lost = 0; // Unix time since when the server does not answer
  let drawn = "";

  return {
    update(view) {
      lost = view.connection === "lost" ? lost || Date.now() / 1000 : 0;
      const told = standstill(view, lost);
      const words = [...(told?.words ?? []), ...faults(view)].map(asSentence).filter(Boolean);
      box.hidden = !told && words.length === 0;
      box.dataset.how = told?.how ?? "";
      say(title, told?.title ?? "");
      say(since, told ? sinceWords(told) : "");
      title.parentElement.hidden = !told;
      if (drawn === words.join("\n")) return;
      drawn = words.join("\n");
      body.replaceChildren(...words.map((one) => make("p", {}, one)));
    },
  };
}

/** Why nothing goes on, and what to do; null while the run trains, or is over as it should be. */
function standstill(view, lost) {
  const { history, connection, ending, status } = view;
  if (connection === "lost") {
    const again = "If the command that served it has ended, troth watch FOLDER shows the run again.";
    return { how: "lost", title: "Connection lost", since: lost, words: ["The page tries again by itself; what it shows is the last it heard.", again] };
  }
  const how = history.ended?.how || ending;
  if (how) return afterTheEnd(history, how);
  return PRESENT[doingNow(view)]?.(status, history) ?? diverged(history);
}

function afterTheEnd(history, how) {
  const member = history.began?.source === "member";
  const text = history.ended?.text ?? "";
  const at = history.ended?.at ?? history.latest?.at ?? null;
  const told = {
    lost: ["Gone silent", "Whoever told this has said nothing since: its process is gone, or hangs. If it goes on, so does the page.", AGAIN],
    stopped: member ? ["This peer has stopped", text, "The others may go on without it.", AGAIN] : ["Ended before its last step", text],
    out: ["This peer is out of the run", text],
    error: [member ? "This peer failed" : "The run failed", text, member ? AGAIN : ""],
  }[how];
  return told ? { how, title: told[0], at, words: told.slice(1) } : null;
}

const PRESENT = {
  __proto__: null,
  meeting: (status, history) => ({
    how: "meets", since: status.since, until: status.at,
    title: history.length ? "Not training: too few are here, or this peer is on its way back" : "Not begun yet: the members meet",
    words: [status.waits_for || "It looks for the others.", unreached(status, history)],
  }),
  waiting: (status, history) => ({
    how: "waits", since: status.since, until: status.at,
    title: status.unheard.length ? "Waiting for " + listed(status.unheard, 4) : "Waiting",
    words: [
      status.waits_for, unreached(status, history),
      `Nothing has to be done here: a member that stays silent is left out after a while, and comes back with ${SAME}.`,
    ],
  }),
  paused: (status, history) => ({
    how: "paused", since: status.since, until: status.at, title: "Paused: the model does not move",
    words: [status.waits_for.replace(/^paused: /, ""), unreached(status, history)],
  }),
};

/** What the member does at this moment; empty where nobody says. A step that ended after the status was written ended its wait. */
export function doingNow({ history, status, stale }) {
  if (!status || stale) return "";
  return status.doing !== "paused" && history.latest?.at > status.at ? "training" : status.doing;
}

/** What its events show without a word of anybody. */
function diverged({ divergedAt, step, at }) {
  if (divergedAt === null) return null;
  const words = `No batch loss has been a number since step ${step[divergedAt]}: gradients are not finite, and the model is probably ruined. A lower rate may help, in a run from an earlier model: troth new --from.`;
  return { how: "diverged", title: "Diverged", since: at[divergedAt], words: [words] };
}

/** Members that are not connected, but for those that were named already. */
function unreached(status, history) {
  const names = notConnected(status, history).filter((name) => !status.waits_for.includes(name) && !status.unheard.includes(name));
  if (!names.length) return "";
  const back = status.waits_for.includes(SAME) ? "" : "; to come back, " + SAME + " is enough";
  return history.length ? "Not connected: " + listed(names, 6) + back : "Not connected yet: " + listed(names, 6);
}

export function notConnected(status, history) {
  return status.links.filter((link) => !link.connected && history.isMember(link.peer)).map((link) => link.peer);
}

function sinceWords({ since, until, at: ended }) {
  if (clock(ended)) return "at " + clock(ended);
  const at = clock(since);
  if (!at) return "";
  return "since " + at + (until > since ? " (" + lasted(until - since) + ")" : "");
}

function faults({ history, report }) {
  const words = [];
  if (history.unkept) words.push("The run is longer than a page can hold: " + count(history.unkept, "step") + " are not shown.");
  if (history.skipped) words.push(count(history.skipped, "event") + " could not be read, and " + (history.skipped === 1 ? "was" : "were") + " skipped.");
  if (report && typeof DecompressionStream === "undefined") words.push("This browser is too old to unpack the report.");
  return words;
}

function asSentence(text) {
  const words = shown(text, 600);
  if (!words) return "";
  return words[0].toUpperCase() + words.slice(1) + (/[.!?\u2026]$/.test(words) ? "" : ".");
}
