// @ts-check
// The page: events come in, all views show the run as of one moment, at most once a frame.

import { startBanner } from "./banner.js";
import { startChart } from "./chart.js";
import { startGrid } from "./grid.js";
import { startHeader } from "./header.js";
import { History } from "./history.js";
import { Moment } from "./moment.js";
import { startHealth, startNetwork, startNewcomers, startNotes } from "./network.js";
import { startPlayer } from "./player.js";
import { startRing } from "./ring.js";
import { rolesOf } from "./roles.js";
import { openSource } from "./source.js";
import { startTheme } from "./theme.js";
import { startTimeline } from "./timeline.js";
import { startTrials } from "./trials.js";
import { startWho } from "./who.js";
import { byId } from "./words.js";

const REST_MS = 120; // between two requests for a step's details, at least
const LATER_MS = 250;
const STALE_S = 5;
const REST_SHARE = 4; // and so many times as long as it took to draw the last: in large runs the slider must not wait for it

function startPage() {
  const run = new History();
  const moment = new Moment(run, repaint);
  let connection = "waiting";
  let ending = ""; // how the stream ended, where it did
  let status = null;
  let total = 0; // events that the server has; before they are here, nothing is announced
  let received = 0;
  let queued = false;
  let detail = { step: -1, of: null, busy: false };
  let picked = null;
  let later = 0;
  const looked = new Set(); // sections with details that are in sight

  const nextTheme = startTheme(repaint);
  const choose = (column) => {
    moment.stop();
    moment.choose(column);
  };
  const views = [
    startHeader(), startBanner(), startChart({ choose, repaint }), startGrid({ choose, repaint }), startTrials({ choose }),
    startNetwork(), startHealth(), startNotes(), startPlayer(moment, nextTheme),
  ];
  const ring = startRing({ pick });
  const who = startWho({ pick });
  const timeline = startTimeline();
  const newcomers = startNewcomers();

  const sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) isIntersecting ? looked.add(target) : looked.delete(target);
    askSoon();
  });
  for (const id of ["ring", "who", "timeline", "health"]) sight.observe(byId(id));

  const source = openSource({
    events(list, all) {
      for (const event of list) run.add(event);
      received += list.length;
      total = all;
      moment.arrived(false);
      repaint();
    },
    forget() {
      run.forget();
      received = 0;
      detail = { ...detail, step: -1 };
      repaint();
    },
    status(one) {
      status = one;
      repaint();
    },
    state(state, how = "") {
      connection = state;
      ending = how;
      if (state !== "open") status = null; // it would be told as the present
      if (state === "ended") {
        total = received;
        moment.arrived(true);
      }
      repaint();
    },
  });

  function repaint() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(paint);
  }

  function paint() {
    queued = false;
    const began = performance.now();
    const view = {
      history: run, column: moment.column, following: moment.follows, playing: moment.playing, connection, ending, status,
      stale: isStale(status, run.latest),
      over: connection === "ended" || run.ended !== null, report: source.report, loading: received < total,
    };
    for (const one of views) one.update(view);
    timeline.present(view.stale ? null : status, moment.follows && connection === "open", run.latest?.step ?? -1);
    askSoon();
    performance.clearMarks("troth-painted"); // only the newest: the browser would keep them all
    performance.mark("troth-painted", { detail: { column: view.column, steps: run.length, took: performance.now() - began } });
  }

  /** At once where somebody looks at the details; else when the slider has come to rest. */
  function askSoon() {
    if (moment.number === null || moment.number === detail.step) return;
    clearTimeout(later);
    if (looked.size === 0) later = setTimeout(() => ask(moment.number), LATER_MS);
    else ask(moment.number);
  }

  /** Owners and phases of the chosen step; one question at a time, so that scrubbing does not flood the server. */
  async function ask(step) {
    if (detail.busy) return;
    detail.busy = true;
    let of = null;
    try {
      of = await source.detail(step);
    } catch {
      // The connection is lost, or the answer cannot be read: the ring keeps the step that it has.
    }
    detail = { step, of, busy: true };
    const began = performance.now();
    if (of) showDetail(of);
    requestAnimationFrame(() => setTimeout(() => rest(performance.now() - began))); // with the time that the browser needs to lay it out
  }

  function rest(took) {
    setTimeout(() => {
      detail.busy = false;
      askSoon();
    }, Math.max(REST_MS, took * REST_SHARE));
  }

  function showDetail(of) {
    const column = run.columnOf(of.step);
    if (column < 0 || run.step[column] !== of.step) return;
    const members = rolesOf(run, column, of);
    ring.update(members, of);
    who.update(members, of);
    timeline.update(of);
    newcomers.update(of, run);
    pick(picked, true);
  }

  function pick(name, again = false) {
    picked = !again && name === picked ? null : name;
    ring.picked(picked);
    who.picked(picked);
  }
}

/** A status that is older than the newest step is not the present. */
function isStale(status, latest) {
  return status !== null && latest !== null && latest.at !== null && latest.at > status.at + STALE_S;
}

startPage();
