// @ts-check
// The step's course: its announcements as bars, who was heard last, and what the member waits for now.

import { byId, listed, make, say, seconds, shown, whole } from "./words.js";

const MOST_BARS = 80;

export function startTimeline() {
  const box = byId("phases");
  const now = byId("now");

  return {
    update(detail) {
      const phases = detail.phases.slice(0, MOST_BARS);
      const total = Math.max(detail.seconds ?? 0, ...phases.map((phase) => phase.ended), 1e-9);
      box.replaceChildren(...phases.map((phase) => bar(phase, total)));
      say(byId("timeline-words"), phases.length ? courseWords(detail, total) : timeless(detail));
    },

    /** What goes on at this moment; nothing where nobody is there. */
    present(status, live, newest) {
      now.hidden = !(live && status);
      if (now.hidden) return;
      if (status.step <= newest && !status.waits_for) {
        say(now, "Steps end before anybody can be waited for" + (status.seconds === null ? "." : ": the last took " + seconds(status.seconds) + "."));
        return;
      }
      const words = ["Now in step " + whole(status.step)];
      if (status.phase) words.push(shown(status.phase, 30) + (status.attempt ? ", attempt " + (status.attempt + 1) : ""));
      if (status.unheard.length) words.push("not heard yet: " + listed(status.unheard, 8));
      say(now, words.join(" \u00b7 ") + ".");
    },
  };
}

function bar(phase, total) {
  const filled = make("div", { class: "bar" + (phase.attempt > 0 ? " again" : "") });
  filled.style.setProperty("left", (100 * phase.began) / total + "%");
  filled.style.setProperty("width", (100 * Math.max(0, phase.ended - phase.began)) / total + "%");
  const last = phase.last.length ? "heard last: " + listed(phase.last, 3) : "";
  return make("div", { class: "phase" },
    make("span", {}, shown(phase.phase, 20) + (phase.attempt > 0 ? " (attempt " + (phase.attempt + 1) + ")" : "")),
    make("div", { class: "track", "aria-hidden": "true" }, filled),
    make("span", { class: "length" }, seconds(phase.ended - phase.began)),
    make("span", { class: "last", title: last || null }, last));
}

function courseWords(detail, total) {
  const sums = new Map();
  let busy = 0;
  for (const phase of detail.phases) {
    const length = Math.max(0, phase.ended - phase.began);
    sums.set(phase.phase, (sums.get(phase.phase) ?? 0) + length);
    busy += length;
  }
  const most = [...sums].sort((one, other) => other[1] - one[1]).slice(0, 3);
  const share = (length) => Math.round((100 * length) / total) + "\u202f%";
  const between = total - busy > 0.02 * total ? ", " + share(total - busy) + " between announcements" : "";
  return "Step " + whole(detail.step) + " took " + seconds(total) + ": " +
    most.map(([phase, length]) => share(length) + " " + shown(phase, 20)).join(", ") + between +
    (detail.attempts > 1 ? ". It took " + detail.attempts + " attempts" : "") + ".";
}

function timeless(detail) {
  const took = detail.seconds === null ? "" : "Step " + whole(detail.step) + " took " + seconds(detail.seconds) + ". ";
  return took + "The times of its phases are not known: only a member that is there measures them.";
}
