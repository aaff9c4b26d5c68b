// @ts-check
// Light, dark, or as the system has it; and the style sheet's colours for those who draw on a canvas.

import { byId, say } from "./words.js";

const THEMES = ["auto", "light", "dark"];
const KEPT = "troth-theme";
const COLOURS = ["paper", "card", "ink", "quiet", "line", "faint", "accent", "loss", "metric", "ban", "focus"];
let colours = null;

export function startTheme(changed) {
  const button = byId("theme");
  let theme = remembered();
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    say(button, "Theme: " + theme);
    colours = null;
    changed();
  };
  const next = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // Nothing is kept where the browser forbids it.
    }
    apply();
  };
  button.addEventListener("click", next);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
  return next;
}

function remembered() {
  try {
    const theme = localStorage.getItem(KEPT);
    return theme !== null && THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

/** Colours as the browser resolved them; `cells` and `signs` by code, `pixels` as a canvas stores them. */
export function palette() {
  if (colours) return colours;
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const resolved = (name) => {
    probe.style.setProperty("color", "var(--" + name + ")");
    return getComputedStyle(probe).color;
  };
  colours = Object.fromEntries(COLOURS.map((name) => [name, resolved(name)]));
  colours.cells = Array.from({ length: 10 }, (_, code) => resolved("cell-" + code));
  colours.signs = Array.from({ length: 10 }, (_, code) => resolved("sign-" + code));
  colours.pixels = Uint32Array.from(colours.cells, pixel);
  probe.remove();
  return colours;
}

function pixel(colour) {
  const [red, green, blue] = colour.match(/[0-9.]+/g).map(Number);
  const parts = new Uint8Array([red, green, blue, 255]);
  return new Uint32Array(parts.buffer)[0]; // in this machine's order, as ImageData has it
}
