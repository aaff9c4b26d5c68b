// @ts-check
// Events as they come, made safe to use: each field has its type, each list its bound. What is missing has its default.
// `docs/events.md` is the schema. An event that cannot be read is skipped by the caller, and counted.

const MOST_NAMES = 4096;
const MOST_NAME = 200;
const MOST_TEXT = 2000;
const MOST_SENTENCES = 24;
const MOST_METRICS = 8;

export class Unreadable extends Error {}

export function readEvent(raw) {
  if (!isObject(raw)) throw new Unreadable("no object");
  switch (raw.event) {
    case "began":
      return readBegan(raw);
    case "step":
      return readStep(raw);
    case "note":
      return { event: "note", text: text(raw.text), at: real(raw.at) };
    case "ended":
      return { event: "ended", how: text(raw.how, 20), text: text(raw.text), at: real(raw.at) };
    default:
      throw new Unreadable("no known event");
  }
}

function readBegan(raw) {
  return {
    event: "began",
    source: text(raw.source, 20),
    of: natural(raw.of) ?? 0,
    peers: objects(raw.peers, MOST_NAMES).map((peer) => ({
      name: needed(peer.name),
      key: text(peer.key, 128),
      founder: peer.founder !== false,
      liar: peer.liar === true,
    })),
    run: text(raw.run, 128),
    name: text(raw.name, MOST_NAME),
    task: text(raw.task, MOST_NAME),
    defence: text(raw.defence, MOST_NAME) || "troth",
    me: text(raw.me, MOST_NAME),
    withstands: natural(raw.withstands),
    quorum: natural(raw.quorum) ?? 0,
    probation: natural(raw.probation) ?? 0,
    exact: raw.exact !== false,
    manifest: text(raw.manifest, 400),
    evidence: text(raw.evidence, 400),
    at: real(raw.at),
  };
}

/** What the page keeps of a step. `full` is asked for the ring and the timeline, one step at a time. */
export function readStep(raw, full = false) {
  const step = natural(raw.step);
  if (step === null) throw new Unreadable("a step without its number");
  const read = {
    event: "step",
    step,
    updates: natural(raw.updates) ?? 0,
    of: natural(raw.of) ?? 0,
    members: natural(raw.members) ?? 0,
    loss: real(raw.loss),
    metrics: metrics(raw.metrics),
    moved: raw.moved !== false,
    withstands: natural(raw.withstands),
    quorum: natural(raw.quorum) ?? 0,
    seconds: real(raw.seconds),
    at: real(raw.at),
    validators: names(raw.validators),
    audits: audits(raw.audits),
    unaudited: pairs(raw.unaudited),
    silent: names(raw.silent),
    trials: objects(raw.trials, 1000).map(readTrial),
    banned: objects(raw.banned, MOST_NAMES).map((ban) => ({
      peer: needed(ban.peer),
      reason: text(ban.reason),
      evidence: text(ban.evidence, 100),
    })),
    left: names(raw.left),
    expelled: names(raw.expelled),
    returned: objects(raw.returned, MOST_NAMES).map((peer) => needed(peer.peer)),
    joined: names(raw.joined),
    link_disputes: list(raw.link_disputes, MOST_NAMES).map(names).filter((pair) => pair.length === 2),
    candidates: objects(raw.candidates, MOST_NAMES).map((candidate) => ({
      name: needed(candidate.name),
      worked: natural(candidate.worked) ?? 0,
      missed: natural(candidate.missed) ?? 0,
      needed: natural(candidate.needed) ?? 0,
    })),
    away: names(raw.away),
    news: list(raw.news, MOST_SENTENCES).map((sentence) => text(sentence)),
    unjudged: raw.unjudged === true,
    closing: raw.closing === true,
    restarted: raw.restarted === true,
    observed: raw.observed === true,
    attempts: natural(raw.attempts) ?? 1,
    control_bytes: natural(raw.control_bytes) ?? 0,
    bulk_bytes: natural(raw.bulk_bytes) ?? 0,
    sent_bytes: natural(raw.sent_bytes) ?? 0,
    received_per_parameter: real(raw.received_per_parameter),
    sent_per_parameter: real(raw.sent_per_parameter),
    delta_s: real(raw.delta_s) ?? 0,
  };
  return full ? { ...read, owners: names(raw.owners), phases: objects(raw.phases, 400).map(readPhase) } : read;
}

function readTrial(raw) {
  const votes = isObject(raw.votes) ? Object.entries(raw.votes).slice(0, MOST_NAMES) : [];
  return {
    kind: text(raw.kind, 60),
    target: needed(raw.target),
    step: natural(raw.step) ?? 0,
    verdict: text(raw.verdict, 20),
    accuser: raw.accuser === null || raw.accuser === undefined ? null : text(raw.accuser, MOST_NAME),
    part: natural(raw.part),
    attempt: natural(raw.attempt) ?? 0,
    banned: raw.banned === null || raw.banned === undefined ? null : text(raw.banned, MOST_NAME),
    votes: votes.map(([voter, ballot]) => [text(voter, MOST_NAME), text(ballot, 20)]),
    quorum: natural(raw.quorum) ?? 0,
    story: list(raw.story, MOST_SENTENCES).map((sentence) => text(sentence)),
    evidence: text(raw.evidence, 100),
  };
}

function readPhase(raw) {
  return {
    phase: text(raw.phase, 40),
    began: Math.max(0, real(raw.began) ?? 0),
    ended: Math.max(0, real(raw.ended) ?? 0),
    attempt: natural(raw.attempt) ?? 0,
    last: names(raw.last),
  };
}

export function readStatus(raw) {
  if (!isObject(raw)) throw new Unreadable("no status");
  return {
    doing: text(raw.doing, 20),
    at: real(raw.at) ?? 0,
    started_at: real(raw.started_at) ?? 0,
    me: text(raw.me, MOST_NAME),
    step: natural(raw.step) ?? 0,
    updates: natural(raw.updates) ?? 0,
    of: natural(raw.of) ?? 0,
    phase: text(raw.phase, 40),
    attempt: natural(raw.attempt) ?? 0,
    unheard: names(raw.unheard),
    waits_for: text(raw.waits_for, 600),
    since: real(raw.since),
    left_s: real(raw.left_s),
    seconds: real(raw.seconds),
    stepped_at: real(raw.stepped_at),
    delta_s: real(raw.delta_s) ?? 0,
    received_bytes: natural(raw.received_bytes) ?? 0,
    sent_bytes: natural(raw.sent_bytes) ?? 0,
    received_per_parameter: real(raw.received_per_parameter),
    sent_per_parameter: real(raw.sent_per_parameter),
    memory_bytes: natural(raw.memory_bytes) ?? 0,
    links: objects(raw.links, 1000).map((link) => ({
      peer: needed(link.peer),
      connected: link.connected === true,
      received_bytes: natural(link.received_bytes) ?? 0,
      sent_bytes: natural(link.sent_bytes) ?? 0,
      latency_s: real(link.latency_s),
      timeouts: natural(link.timeouts) ?? 0,
      heard_last: natural(link.heard_last) ?? 0,
      late_s: real(link.late_s),
      lost: natural(link.lost) ?? 0,
      trouble: text(link.trouble, 400),
    })),
    text: text(raw.text, 400),
  };
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value, most = MOST_TEXT) {
  return typeof value === "string" ? value.slice(0, most) : "";
}

/** A name without which the thing means nothing. */
function needed(value) {
  if (typeof value !== "string" || value === "") throw new Unreadable("a name is missing");
  return value.slice(0, MOST_NAME);
}

function real(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function natural(value) {
  return Number.isSafeInteger(value) && value >= 0 ? value : null;
}

function list(value, most) {
  return Array.isArray(value) ? value.slice(0, most) : [];
}

function objects(value, most) {
  return list(value, most).filter(isObject);
}

function names(value) {
  return list(value, MOST_NAMES)
    .filter((name) => typeof name === "string" && name !== "")
    .map((name) => name.slice(0, MOST_NAME));
}

function audits(value) {
  return list(value, 100000).filter(
    (audit) =>
      Array.isArray(audit) && typeof audit[0] === "string" && typeof audit[1] === "string" && natural(audit[2]) !== null,
  );
}

/** A name and a step, each. */
function pairs(value) {
  return list(value, 100000).filter((pair) => Array.isArray(pair) && typeof pair[0] === "string" && natural(pair[1]) !== null);
}

function metrics(value) {
  if (!isObject(value)) return [];
  return Object.entries(value)
    .filter(([, figure]) => real(figure) !== null)
    .slice(0, MOST_METRICS)
    .map(([name, figure]) => [name.slice(0, 60), figure]);
}
