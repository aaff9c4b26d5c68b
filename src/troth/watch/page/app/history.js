// @ts-check
// The run so far, small enough to keep: a byte for each peer and step, a row of numbers for each step, and the stories.

import { ABSENT, ACCUSED, BANNED, Cells, CLEAN, CONTRIBUTED, EXPELLED, GONE, NOT_YET, PROBATION, VALIDATED } from "./cells.js";
import { readEvent } from "./read.js";

const MOST_PEERS = 4000;
const MOST_STEPS = 500000;
const MOST_CELLS = 1 << 26; // bytes, before the views from further away
const MOST_STORIES = 3000;
const MOST_LINES = 1000;
const MOST_NUMBERLESS = 3; // steps in a row whose loss is no number, until the run is called diverged

// What a peer is between steps
const STRANGER = 0;
const MEMBER = 1;
const AWAY = 2;
const OUT = 3;

export class History {
  constructor() {
    this.forget();
  }

  /** Begin again: the server tells another story, or tells it from the beginning. */
  forget() {
    this.skipped = 0; // events that could not be read
    this.unkept = 0; // steps beyond what a page can hold
    this.began = null;
    this.ended = null;
    this.peers = []; // { name, key, founder, liar }, a row of cells each
    this.cells = new Cells();
    this.stories = []; // trials, and bans without one: oldest first
    this.lines = []; // notes and news
    this.bans = []; // { at, row, reason }
    this.accusations = []; // { at, row }
    this.pauses = []; // { from, to }: columns in which the model did not move
    this.restarts = [];
    // A row for each step. Columns count from 0; `step` is the number that records and evidence have.
    this.step = [];
    this.updates = [];
    this.members = [];
    this.withstands = [];
    this.quorum = [];
    this.loss = [];
    this.seconds = [];
    this.at = [];
    this.metrics = new Map(); // by name: a value or null for each step
    this.rows = new Map(); // by name
    this.numberless = null; // { from, steps }: column since which no loss is a number, after some were
    this.standing = []; // by row: STRANGER, MEMBER, AWAY or OUT
    this.changes = []; // { at, row, standing }, to take steps back
    this.latest = null; // the newest step as it was read
  }

  get length() {
    return this.step.length;
  }

  /** Take in one event. Whether it could be read. */
  add(raw) {
    let event;
    try {
      event = readEvent(raw);
    } catch {
      this.skipped++;
      return false;
    }
    if (event.event === "began") this.#begin(event);
    else if (event.event === "step") this.#stepped(event);
    else if (event.event === "note") this.#note(event);
    else this.ended = event;
    return true;
  }

  /** The column of a step by its number, or of the last step before it; -1 where there is none. */
  columnOf(step) {
    let low = 0;
    let high = this.step.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.step[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** The newest value of a metric in a column or before. */
  metricAt(name, column) {
    const values = this.metrics.get(name);
    for (let at = column; values && at >= 0; at--) if (values[at] !== null) return values[at];
    return null;
  }

  isMember(name) {
    const row = this.rows.get(name);
    return row !== undefined && this.standing[row] === MEMBER;
  }

  /** Whether the newest step is the one that closes the run, and nothing happened in it. */
  get closesQuietly() {
    const { latest } = this;
    return latest !== null && latest.closing && !latest.trials.length && !latest.banned.length;
  }

  #begin(event) {
    this.began = event;
    this.ended = null;
    for (const peer of event.peers) {
      const known = this.rows.get(peer.name);
      const row = known ?? this.#row(peer.name);
      if (row === -1) continue;
      this.peers[row] = peer;
      // A member that came back says again who founded the run, not who was banned since.
      if (known === undefined && peer.founder) this.standing[row] = MEMBER;
    }
  }

  #stepped(event) {
    if (this.length && event.step <= this.step[this.length - 1]) this.#rewind(event.step);
    if (this.length >= MOST_STEPS || (this.length + 1) * this.cells.stride > MOST_CELLS) {
      this.unkept++;
      return;
    }
    const at = this.length;
    this.step.push(event.step);
    this.updates.push(event.updates);
    this.members.push(event.members);
    this.withstands.push(event.withstands);
    this.quorum.push(event.quorum);
    this.loss.push(event.loss);
    this.seconds.push(event.seconds);
    this.at.push(event.at);
    this.#measure(at, event.metrics);
    this.#fillColumn(at, event);
    this.#audited(event);
    this.#judge(at, event);
    this.#changeRoster(at, event);
    this.#loseNumbers(at, event);
    if (!event.moved) this.#pause(at);
    if (event.restarted) this.restarts.push(at);
    for (const sentence of this.#news(at, event)) this.#line(sentence, event.at, at);
    this.latest = event;
  }

  /** Losses that are not finite come as null; so do those of one that only observes, and of steps without any. */
  #loseNumbers(at, event) {
    const without = event.loss === null && event.moved && !event.observed;
    if (!without) this.numberless = event.loss === null ? this.numberless : null;
    else if (this.numberless) this.numberless.steps++;
    else if (this.loss[at - 1] !== null && at > 0) this.numberless = { from: at, steps: 1 };
  }

  /** Column since which no loss is a number, for long enough to call the run diverged; null while it learns. */
  get divergedAt() {
    return this.numberless && this.numberless.steps >= MOST_NUMBERLESS ? this.numberless.from : null;
  }

  #measure(at, metrics) {
    for (const [name] of metrics) {
      if (!this.metrics.has(name) && this.metrics.size < 8) this.metrics.set(name, new Array(at).fill(null));
    }
    for (const values of this.metrics.values()) values.push(null);
    for (const [name, value] of metrics) {
      const values = this.metrics.get(name);
      if (values) values[at] = value;
    }
  }

  #fillColumn(at, event) {
    const cells = this.cells;
    for (const candidate of event.candidates) this.#row(candidate.name);
    cells.addColumn();
    const exempt = new Set();
    for (const name of event.validators) this.#mark(at, name, VALIDATED, exempt);
    for (const name of event.silent) this.#mark(at, name, ABSENT, exempt);
    for (const candidate of event.candidates) {
      const row = this.rows.get(candidate.name);
      if (row !== undefined && this.standing[row] !== MEMBER) this.#mark(at, candidate.name, PROBATION, exempt);
    }
    for (let row = 0; row < this.peers.length; row++) {
      if (exempt.has(row)) continue;
      const standing = this.standing[row];
      cells.raise(at, row, standing === MEMBER ? CONTRIBUTED : standing === AWAY ? ABSENT : standing === OUT ? GONE : NOT_YET);
    }
  }

  #mark(at, name, code, exempt) {
    const row = this.#row(name);
    if (row === -1) return;
    exempt.add(row);
    this.cells.raise(at, row, code);
  }

  /** Work that was recomputed, and of which nobody complained, is clean: in the step in which it was done. A later audit may
   * still find what a colluder let pass. */
  #audited(event) {
    const disputed = new Set(event.trials.map((trial) => trial.step + " " + trial.target));
    for (const [target, step] of event.unaudited) disputed.add(step + " " + target);
    const columns = new Map();
    for (const [, target, step] of event.audits) {
      if (!columns.has(step)) columns.set(step, this.columnOf(step));
      const column = columns.get(step);
      const row = this.rows.get(target);
      if (row === undefined || column < 0 || this.step[column] !== step) continue;
      const code = this.cells.at(column, row);
      const clean = !(disputed.size && disputed.has(step + " " + target));
      if (code === CONTRIBUTED && clean) this.cells.raise(column, row, CLEAN);
      else if (code === CLEAN && !clean) this.cells.lower(column, row, CONTRIBUTED);
    }
  }

  #judge(at, event) {
    const told = new Set();
    for (const trial of event.trials) {
      const row = this.#row(trial.target);
      if (row !== -1) {
        this.cells.raise(at, row, ACCUSED);
        this.#bounded(this.accusations, { at, row });
      }
      if (trial.banned !== null) told.add(trial.banned);
      this.#bounded(this.stories, { at, trial, ban: null });
    }
    for (const ban of event.banned) {
      const row = this.#row(ban.peer);
      if (row === -1) continue;
      this.cells.raise(at, row, BANNED);
      this.#bounded(this.bans, { at, row, reason: ban.reason });
      if (!told.has(ban.peer)) this.#bounded(this.stories, { at, trial: null, ban });
    }
  }

  #changeRoster(at, event) {
    const back = new Set([...event.returned, ...event.joined]);
    for (const ban of event.banned) this.#change(at, ban.peer, OUT);
    for (const name of event.expelled) this.#change(at, name, OUT, EXPELLED);
    for (const name of event.left) this.#change(at, name, AWAY, ABSENT);
    for (const name of event.away) if (!back.has(name)) this.#change(at, name, AWAY);
    for (const name of back) this.#change(at, name, MEMBER);
  }

  #change(at, name, standing, code = NOT_YET) {
    const row = this.#row(name);
    if (row === -1) return;
    this.cells.raise(at, row, code);
    if (this.standing[row] === standing) return;
    this.standing[row] = standing;
    this.changes.push({ at, row, standing });
  }

  /** What a step changed, as sentences; the same as the terminal's. */
  #news(at, event) {
    const pause = this.pauses[this.pauses.length - 1];
    const says = (names, words) => names.map((name) => name + words);
    return [
      ...(event.restarted ? ["The run goes on, after too many had stopped"] : []),
      ...event.banned.map((ban) => ban.peer + " is banned: " + ban.reason),
      ...says(event.left, " is absent, and no longer a member"),
      ...says(event.expelled, " is expelled: its connection failed too often"),
      ...event.link_disputes.map(([one, other]) => one + " and " + other + " do not hear each other, as one of them says: one of them should open its port to the other"),
      ...says(event.joined, " joined, after its probation"),
      ...says(event.returned, " is back"),
      ...(pause?.from === at && !event.closing ? ["The model does not move, with " + event.members + " members"] : []),
      ...(pause?.to === at - 1 && event.moved ? ["The model moves again"] : []),
      ...event.news,
    ];
  }

  #pause(at) {
    const last = this.pauses[this.pauses.length - 1];
    if (last && last.to === at - 1) last.to = at;
    else this.pauses.push({ from: at, to: at });
  }

  /** A run that restarted makes steps again that not enough members had signed: the newer ones count. */
  #rewind(step) {
    const at = this.columnOf(step - 1) + 1;
    for (const rows of [this.step, this.updates, this.members, this.withstands, this.quorum, this.loss, this.seconds, this.at]) {
      rows.length = at;
    }
    for (const values of this.metrics.values()) values.length = at;
    for (const kept of ["stories", "lines", "bans", "accusations", "changes"]) {
      this[kept] = this[kept].filter((one) => one.at < at);
    }
    this.pauses = this.pauses.filter((pause) => pause.from < at).map((pause) => ({ ...pause, to: Math.min(pause.to, at - 1) }));
    this.numberless = null;
    this.restarts = this.restarts.filter((restart) => restart < at);
    this.cells.cut(at);
    this.standing = this.peers.map((peer) => (peer.founder ? MEMBER : STRANGER));
    for (const change of this.changes) this.standing[change.row] = change.standing;
  }

  /** The row of a peer, made where it is new; -1 where there are too many. */
  #row(name) {
    const known = this.rows.get(name);
    if (known !== undefined) return known;
    if (this.peers.length >= MOST_PEERS) return -1;
    const row = this.cells.addRow();
    this.rows.set(name, row);
    this.peers.push({ name, key: "", founder: false, liar: false });
    this.standing.push(STRANGER);
    return row;
  }

  /** A wait that is told again with another time takes the place of the one before. */
  #note({ text, at }) {
    const last = this.lines[this.lines.length - 1];
    const frame = text.replace(/[0-9]+/g, "0");
    if (last?.frame === frame && last.at === this.length - 1) this.lines.pop();
    this.#line(text, at, this.length - 1, frame);
  }

  #line(text, time, at, frame = "") {
    this.#bounded(this.lines, { at, text, time, frame }, MOST_LINES);
  }

  #bounded(kept, one, most = MOST_STORIES) {
    kept.push(one);
    if (kept.length > most) kept.splice(0, Math.ceil(most / 10));
  }
}

/** How many of those, which are in order, happened up to a column. */
export function upTo(ordered, column) {
  let low = 0;
  let high = ordered.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ordered[middle].at <= column) low = middle + 1;
    else high = middle;
  }
  return low;
}
