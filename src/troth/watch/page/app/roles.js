// @ts-check
// Who does what in one step, from the step's own event and the grid's cells.

import { ABSENT, GONE, NOT_YET, PROBATION } from "./cells.js";

export const ROLES = { contributor: "contributor", validator: "validator", silent: "silent", banned: "banned", candidate: "on probation" };

/** Everyone who had a part in a step: { name, liar, role, parts, audits, auditors }, in the order of the grid's rows. */
export function rolesOf(history, column, detail) {
  const validators = new Set(detail.validators);
  const silent = new Set([...detail.silent, ...detail.left]);
  const banned = new Set(detail.banned.map((ban) => ban.peer));
  const members = [];
  const byName = new Map();
  for (let row = 0; row < history.peers.length; row++) {
    const { name, liar } = history.peers[row];
    const code = history.cells.at(column, row);
    if (code === NOT_YET || code === GONE || (code === ABSENT && !silent.has(name))) continue;
    const role = banned.has(name) ? "banned" : validators.has(name) ? "validator" : silent.has(name) ? "silent"
      : code === PROBATION ? "candidate" : "contributor";
    const member = { name, liar, role, parts: [], audits: [], auditors: [] };
    members.push(member);
    byName.set(name, member);
  }
  detail.owners.forEach((owner, part) => byName.get(owner)?.parts.push(part));
  for (const [auditor, target] of detail.audits) {
    byName.get(auditor)?.audits.push(target);
    byName.get(target)?.auditors.push(auditor);
  }
  return members;
}
