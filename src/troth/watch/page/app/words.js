// @ts-check
// Text for people: numbers, clipped strings, and elements made without markup.
// Every string of an event is hostile. It reaches the document as text or as the value of a harmless attribute, never as markup.

/** Control characters and those that change the direction of what follows: a name could dress up as another one. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const EVIDENCE = /^ban-step[0-9]+-[A-Za-z0-9._-]{1,40}\.json$/;
const GIVEN = new Set(["class", "id", "title", "type", "scope", "role", "tabindex", "colspan", "value", "for", "hidden"]);
const DRAWN = "http://www.w3.org/2000/svg"; // a name of SVG's elements; nothing is fetched

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** What a string looks like on the page: one line, no tricks, not too long. */
export function shown(value, most = 32) {
  const text = String(value).slice(0, 4 * most).replace(UNSEEN, "\u00b7");
  const letters = Array.from(text);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "\u2026" : text;
}

export function whole(value) {
  return value === null || value === undefined || !Number.isFinite(value) ? "\u2013" : WHOLE.format(value);
}

/** A loss or a metric, with as many digits as a person compares. */
export function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "\u2013";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100000)) return value.toExponential(2).replace("-", "\u2212");
  return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3).replace("-", "\u2212");
}

/** A metric: shares of one, such as an accuracy, as per cent. */
export function metric(name, value) {
  if (value !== null && isShare(name) && value >= 0 && value <= 1) return (100 * value).toFixed(1) + "\u202f%";
  return figure(value);
}

/** A metric's name; its loss is not that of a peer's last batch, which is a curve of its own. */
export function metricName(name) {
  return name === "loss" ? "test loss" : shown(name, 30);
}

export function isLoss(name) {
  return /loss/i.test(name);
}

export function isShare(name) {
  return /accuracy|share|rate/i.test(name);
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "\u2013";
  if (value < 0.0995) return (value * 1000).toFixed(value < 0.00995 ? 1 : 0) + "\u202fms";
  if (value < 99.5) return value.toFixed(value < 9.95 ? 2 : 1) + "\u202fs";
  const minutes = Math.round(value / 60);
  return minutes < 120 ? minutes + "\u202fmin" : (value / 3600).toFixed(1) + "\u202fh";
}

/** A time that goes on, or is estimated: as much of it as is worth reading. */
export function lasted(value) {
  return value < 119.5 ? Math.round(value) + "\u202fs" : seconds(value);
}

export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "\u2013";
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit++;
  }
  return (unit === 0 || value >= 100 ? value.toFixed(0) : value.toPrecision(3)) + "\u202f" + UNITS[unit];
}

export function clock(unix) {
  if (unix === null || unix === undefined || !(unix > 0) || unix > 8e12) return "";
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
}

/** `1 ban`, `3 bans`. */
export function count(number, noun, plural = noun + "s") {
  return whole(number) + "\u00a0" + (number === 1 ? noun : plural);
}

/** `a, b and c`, and how many more where there are too many to read. */
export function listed(names, most = 6) {
  const some = names.slice(0, most).map((name) => shown(name));
  if (names.length > most) return some.join(", ") + " and " + whole(names.length - most) + " more";
  return some.length < 2 ? some.join("") : some.slice(0, -1).join(", ") + " and " + some[some.length - 1];
}

/** An element. Only harmless attributes pass, so that a mistake elsewhere cannot turn data into code. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(DRAWN, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (/^on|href|style/i.test(name)) throw new Error("attribute " + name + " is not for data");
    element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (!GIVEN.has(name) && !name.startsWith("aria-") && !name.startsWith("data-")) {
      throw new Error("attribute " + name + " is not for data");
    }
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A peer's name: set apart from the sentence around it, whole in the title when it was clipped. */
export function nameOf(peer, most = 24) {
  const text = shown(peer, most);
  return make("span", { class: "name", title: text === peer ? null : shown(peer, 200) }, text);
}

export function isEvidence(name) {
  return EVIDENCE.test(name);
}

/** Change text only where it differs: what stays the same is not announced, painted or selected anew. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error("the page has no #" + id);
  return found;
}

/** Copy, also where the clipboard is out of bounds (pages from a file, old browsers). */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
