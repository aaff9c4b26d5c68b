// @ts-check
// Where events come from: the server beside the page, or the page itself when it is a report.

import { readStatus, readStep } from "./read.js";

const MOST_DETAILS = 64;
const AGAIN_MS = 2000;
const MAY_COME_BACK = ["stopped", "error", "lost"]; // what a member may do after this; the others are final

/** The listener gets: events(list, total), forget(), status(one), state("open" | "lost" | "ended", how). */
export function openSource(listener) {
  const inside = document.getElementById("run-data");
  return inside ? new ReportSource(inside, listener) : new ServerSource(listener);
}

class ServerSource {
  constructor(listener) {
    this.report = false;
    this.listener = listener;
    this.received = 0;
    this.details = new Map();
    this.#connect();
  }

  #connect() {
    const events = new EventSource("/events");
    events.onopen = () => this.listener.state("open");
    events.onmessage = (message) => this.#take(message);
    events.addEventListener("status", (message) => {
      try {
        this.listener.status(readStatus(JSON.parse(message.data)));
      } catch {
        // A status that cannot be read: the next one comes in a second.
      }
    });
    events.addEventListener("end", (message) => {
      const how = endOf(message.data);
      if (!MAY_COME_BACK.includes(how)) events.close();
      this.listener.state("ended", how);
    });
    events.addEventListener("again", () => this.listener.state("open")); // it was only silent
    events.addEventListener("reset", () => this.#forget()); // another run took the place of the one that was shown
    events.onerror = () => {
      this.listener.state("lost");
      // The browser tries again by itself, from where it was, unless the server answered with an error.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => this.#connect(), AGAIN_MS);
    };
  }

  #take(message) {
    let data;
    try {
      data = JSON.parse(message.data);
    } catch {
      return;
    }
    const { events, total } = data;
    if (!Array.isArray(events)) return;
    const from = Number.isSafeInteger(data.from) ? data.from : this.received;
    if (from < this.received) this.#forget(); // what the server says now is all that there is
    for (const event of events) this.details.delete(event?.step); // a step that was made again
    this.received = from + events.length;
    this.listener.state("open");
    this.listener.events(events, Number.isSafeInteger(total) ? total : this.received);
  }

  #forget() {
    this.details.clear();
    this.received = 0;
    this.listener.forget();
  }

  /** All of one step, with owners and phases; null where the server has none. */
  async detail(step) {
    const known = this.details.get(step);
    if (known) return known;
    const answer = await fetch("/step?n=" + step);
    if (!answer.ok) return null;
    const detail = readStep(await answer.json(), true);
    if (this.details.size >= MOST_DETAILS) this.details.delete(this.details.keys().next().value);
    this.details.set(step, detail);
    return detail;
  }
}

/** Everything is in the page: lines of JSON, as text or compressed. It asks for nothing. */
class ReportSource {
  constructor(inside, listener) {
    this.report = true;
    this.listener = listener;
    this.text = "";
    this.places = new Map(); // by step: where its line begins and ends
    this.#read(inside);
  }

  async #read(inside) {
    await null; // whoever opened this must have it in hand before the first events come
    const packed = JSON.parse(inside.textContent);
    inside.remove(); // else it would be kept twice
    this.text = packed.gzip ? await unpacked(packed.gzip) : packed.lines;
    let batch = [];
    let began = performance.now();
    for (let from = 0; from < this.text.length; ) {
      const found = this.text.indexOf("\n", from);
      const to = found === -1 ? this.text.length : found;
      if (to > from) batch.push(this.#event(from, to));
      from = to + 1;
      if (performance.now() - began > 30 || from >= this.text.length) {
        this.listener.events(batch, Infinity);
        batch = [];
        await new Promise((resolve) => setTimeout(resolve)); // let the page paint what there is
        began = performance.now();
      }
    }
    this.listener.state("ended");
  }

  #event(from, to) {
    try {
      const event = JSON.parse(this.text.slice(from, to));
      if (event.event === "step") this.places.set(event.step, [from, to]);
      return event;
    } catch {
      return null; // counted as one that cannot be read
    }
  }

  async detail(step) {
    const place = this.places.get(step);
    return place ? readStep(JSON.parse(this.text.slice(...place)), true) : null;
  }
}

async function unpacked(base64) {
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return await new Response(stream).text();
}

function endOf(data) {
  try {
    return String(JSON.parse(data).how ?? "over");
  } catch {
    return "over";
  }
}
