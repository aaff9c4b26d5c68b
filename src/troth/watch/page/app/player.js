// @ts-check
// The slider with its buttons, the page's keys, and the address of the moment.

import { byId, copy, say, whole } from "./words.js";

const ADDRESS_MS = 250; // browsers forbid changing the address all the time

export function startPlayer(moment, nextTheme) {
  const slider = byId("slider");
  const play = byId("play");
  const live = byId("live");
  const link = byId("link");
  const help = byId("help");
  let timer = 0;
  let known = location.hash; // the address as this page wrote or read it last

  slider.addEventListener("input", () => {
    moment.stop();
    moment.choose(Number(slider.value));
  });
  play.addEventListener("click", toggle);
  live.addEventListener("click", () => moment.follow());
  link.addEventListener("click", copyLink);
  byId("speed").addEventListener("change", (event) => {
    moment.rate = Number(event.target.value) || 10;
    moment.due = performance.now();
  });
  byId("help-open").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", onKey);

  function toggle() {
    if (moment.playing) moment.stop();
    else moment.play();
  }

  async function copyLink() {
    writeAddress();
    const done = await copy(location.href);
    say(link, done ? "Copied" : "No clipboard");
    setTimeout(() => say(link, "Copy link"), 1500);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const target = event.target instanceof HTMLElement ? event.target : null;
    const kind = target?.tagName ?? "";
    if (/^(SELECT|TEXTAREA)$/.test(kind)) return;
    // These elements have their own use for some keys.
    const own = kind === "INPUT" ? ["ArrowLeft", "ArrowRight", "Home", "End"] : /^(BUTTON|A|SUMMARY)$/.test(kind) ? [" "] : [];
    if (own.includes(event.key) && !(kind === "INPUT" && event.shiftKey)) return;
    const by = event.shiftKey ? 10 : 1;
    const acts = {
      ArrowLeft: () => moment.move(-by), ArrowRight: () => moment.move(by),
      Home: () => moment.move(-Infinity), End: () => moment.move(Infinity),
      " ": toggle, l: () => moment.follow(), c: copyLink, d: nextTheme,
      g: () => reach("grid-box"), t: () => reach("trials-list"), "?": () => help.showModal(),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  function reach(id) {
    byId(id).scrollIntoView({ block: "nearest" });
    byId(id).focus();
  }

  /** A run that is followed has no moment to link to: its address stays plain. */
  function writeAddress() {
    clearTimeout(timer);
    timer = 0;
    const changed = location.hash !== known; // by the reader: `hashchange` is on its way, and must find what they wrote
    known = location.hash;
    if (changed || moment.number === null || moment.wanted !== null) return;
    const hash = moment.follows && !document.activeElement?.isSameNode(link) ? "" : "#step=" + moment.number;
    if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname + location.search);
    known = location.hash;
  }

  return {
    update({ history: run, column, following, over }) {
      const last = Math.max(0, run.length - 1);
      slider.disabled = play.disabled = live.disabled = link.disabled = run.length === 0;
      if (slider.max !== String(last)) slider.max = String(last);
      if (slider.value !== String(Math.max(0, column))) slider.value = String(Math.max(0, column));
      if (column >= 0) {
        const words = "Step " + whole(run.step[column]) + " of " + whole(run.step[last]);
        say(byId("slider-words"), words);
        slider.setAttribute("aria-valuetext", words);
      }
      play.setAttribute("aria-pressed", String(moment.playing));
      say(byId("play-sign"), moment.playing ? "\u275a\u275a" : "\u25b6");
      say(byId("play-word"), moment.playing ? "Pause" : "Play");
      play.setAttribute("aria-label", moment.playing ? "Pause" : "Play");
      live.setAttribute("aria-pressed", String(following));
      say(live, over ? "Newest" : "Live");
      if (!timer) timer = setTimeout(writeAddress, ADDRESS_MS);
    },
  };
}
