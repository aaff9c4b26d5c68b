// @ts-check
// Trials and bans as stories, the newest first, as of the chosen step.

import { ACCUSED, BANNED, CELLS } from "./cells.js";
import { upTo } from "./history.js";
import { byId, copy, count, isEvidence, make, nameOf, say, shown, whole } from "./words.js";

const PAGE = 8; // stories that are drawn at once
const MOST_MADE = 200; // that are kept
const REST = 100; // milliseconds between two drawings
const BALLOTS = { __proto__: null, accused: "the accused lied", accuser: "the accuser lied", withheld: "the accused showed too little" };
const ENDINGS = { __proto__: null, withheld: " out, without a ban", accuser: " acquitted" }; // of trials that banned nobody

export function startTrials({ choose }) {
  const list = byId("trials-list");
  const more = make("button", { type: "button" }, "Show older ones");
  let room = PAGE;
  let drawn = { marker: undefined, room: 0, manifest: undefined, when: -Infinity };
  let again = 0;
  const made = new Map(); // articles by story, so that those that stay are not made anew
  let view = null;

  more.addEventListener("click", () => {
    room += PAGE;
    update(view);
  });
  list.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target instanceof HTMLElement && event.target.tagName === "ARTICLE") {
      const votes = event.target.querySelector("details");
      if (votes) votes.open = !votes.open;
      return;
    }
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || !(event.target instanceof HTMLElement)) return;
    const all = [...list.querySelectorAll("article")];
    const now = all.findIndex((one) => one.contains(event.target));
    const next = all[Math.max(0, Math.min(all.length - 1, now + by))];
    if (next) next.focus();
    event.preventDefault();
    event.stopPropagation();
  });

  function update(next) {
    view = next;
    const { history, column } = view;
    const told = upTo(history.stories, column);
    const marker = told ? history.stories[told - 1] : null;
    if (drawn.marker === marker && drawn.room === room && drawn.manifest === history.began?.manifest) return;
    // While the slider moves, the list follows a few times a second: to lay it out takes longer than all else.
    const rest = REST - (performance.now() - drawn.when);
    if (rest > 0) {
      clearTimeout(again);
      again = setTimeout(() => update(view), rest);
      return;
    }
    if (drawn.manifest !== history.began?.manifest) made.clear();
    drawn = { marker, room, manifest: history.began?.manifest, when: performance.now() };
    const some = history.stories.slice(Math.max(0, told - room), told).reverse();
    replace(some.map(articleOf), told > room ? [more] : []);
    if (!told) list.append(make("p", { class: "quiet" }, "Nobody has been accused" + (history.length ? " so far." : ".")));
    const bans = upTo(history.bans, column);
    const trials = history.stories.slice(0, told).filter((story) => story.trial).length;
    say(byId("trials-words"), told ? count(trials, "trial") + ", " + count(bans, "ban") : "");
  }

  /** Without moving what is being read, or taking the focus away from it. */
  function replace(articles, after) {
    const focused = list.contains(document.activeElement) ? document.activeElement : null;
    const top = list.scrollTop;
    const read = top > 0 ? [...list.children].find((one) => one.offsetTop + one.offsetHeight > list.offsetTop + top) : undefined;
    const before = read?.offsetTop ?? 0;
    list.replaceChildren(...articles, ...after);
    if (read?.isConnected) list.scrollTop = top + read.offsetTop - before;
    if (focused?.isConnected) focused.focus({ preventScroll: true });
  }

  function articleOf(story) {
    const known = made.get(story);
    if (known) return known;
    if (made.size > MOST_MADE) made.clear();
    const fresh = article(story, view, choose);
    made.set(story, fresh);
    return fresh;
  }
  return { update };
}

function article(story, view, choose) {
  const { history } = view;
  const step = history.step[story.at];
  const { trial, ban } = story;
  const banned = trial ? trial.banned : ban.peer;
  const code = banned === null ? ACCUSED : BANNED;
  const go = make("button", { type: "button", class: "link", title: "Show this step everywhere" }, "step " + whole(step));
  go.addEventListener("click", () => choose(story.at));
  const head = make("h3", {},
    make("span", { class: "key key-" + code, "aria-hidden": "true" }, CELLS[code].sign),
    banned === null ? make("span", {}, nameOf(trial.target), ENDINGS[trial.verdict] ?? " accused") : make("span", {}, nameOf(banned), " banned"),
    make("span", { class: "quiet" }, trial && trial.kind ? shown(trial.kind, 40) + " of step " + whole(trial.step) + ", tried in " : "in ", go));
  const body = trial ? trialParts(trial) : [make("p", { class: "story" }, sentence(ban.reason))];
  const evidence = trial ? trial.evidence : ban.evidence;
  return make("article", { class: "trial", tabindex: "0" }, head, ...body, ...evidenceParts(evidence, view));
}

function trialParts(trial) {
  const story = trial.story.length ? trial.story : [plainStory(trial)];
  const parts = story.map((line) => make("p", { class: "story" }, shown(line, 600)));
  if (trial.votes.length) parts.push(votes(trial));
  return parts;
}

function plainStory(trial) {
  const by = trial.accuser === null ? "Everybody saw that " : shown(trial.accuser) + " said that ";
  const ends = { __proto__: null, accused: "The jury agreed.", accuser: "The jury found that the accuser lied.", withheld: "Too little was shown to judge it.", dismissed: "No quorum agreed: the accusation was dismissed." };
  return by + "the " + shown(trial.kind, 40) + " of " + shown(trial.target) + " in step " + whole(trial.step) + " was wrong. " + (ends[trial.verdict] ?? "");
}

function sentence(reason) {
  const text = shown(reason, 600);
  return text === "" ? "No reason was given." : /[.!?]$/.test(text) ? text : text + ".";
}

/** Where a part was disputed there is no accuser: then this ballot says that its owner is right. */
function ballotWords(trial, ballot) {
  if (ballot === "accuser" && trial.accuser === null) return "found nothing wrong";
  return Object.hasOwn(BALLOTS, ballot) ? BALLOTS[ballot] : shown(ballot, 20);
}

/** Many jurors: how many of each kind at a glance, each by name in a table that opens. */
function votes(trial) {
  const counted = new Map();
  for (const [, ballot] of trial.votes) counted.set(ballot, (counted.get(ballot) ?? 0) + 1);
  const sums = [...counted].sort((one, other) => other[1] - one[1]).map(([ballot, number]) => number + " " + ballotWords(trial, ballot));
  const needs = trial.quorum ? "; " + trial.quorum + " decide" : "";
  const box = make("details", {}, make("summary", {}, "Votes: " + sums.join(", ") + needs));
  box.addEventListener("toggle", () => {
    if (!box.open || box.childElementCount > 1) return;
    const rows = trial.votes.slice(0, 500).map(([voter, ballot]) =>
      make("tr", {}, make("td", {}, nameOf(voter)), make("td", {}, ballotWords(trial, ballot))));
    box.append(make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Juror"), make("th", { scope: "col" }, "Vote"))),
      make("tbody", {}, ...rows)));
  });
  return box;
}

/** The file that proves the ban, and the command that checks it. A name that no file of ours has gets no link. */
function evidenceParts(evidence, { history, report }) {
  if (!isEvidence(evidence)) return [];
  const manifest = history.began?.manifest || "run.toml";
  // Whoever was sent a report has the file elsewhere.
  const folder = report ? "" : (history.began?.evidence ?? "");
  const command = "troth verify " + quoted((folder && folder + "/") + evidence) + " --run " + quoted(manifest);
  const button = make("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
  button.addEventListener("click", async () => {
    say(button, (await copy(command)) ? "Copied" : "Select it");
    setTimeout(() => say(button, "Copy"), 1500);
  });
  const line = make("div", { class: "command" }, make("code", { tabindex: "0" }, command), button);
  if (report) return [make("p", { class: "quiet" }, "Evidence: " + evidence + ", in the run's folder"), line];
  const link = document.createElement("a");
  link.setAttribute("href", "/evidence/" + evidence);
  link.setAttribute("download", evidence);
  link.textContent = "Download the evidence";
  return [make("p", {}, link, make("span", { class: "quiet" }, " (" + evidence + ")")), line];
}

/** For a shell: a folder's or a manifest's name may have been chosen by somebody who wants another command to be run. */
function quoted(name) {
  const seen = (name.startsWith("-") ? "./" : "") + shown(name, 600);
  return /^[A-Za-z0-9_./+:@-]+$/.test(seen) ? seen : "'" + seen.replaceAll("'", "'\\''") + "'";
}
