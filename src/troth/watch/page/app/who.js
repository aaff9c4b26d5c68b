// @ts-check
// The same as the ring, in words: a row for each member. Names are buttons that set the member off in the ring.

import { ROLES } from "./roles.js";
import { byId, listed, make, nameOf, say, whole } from "./words.js";

const MOST_ROWS = 400;
const WHO_HEADS = ["Member", "Role", "Owns part", "Audits", "Audited by"];

export function startWho({ pick }) {
  const table = byId("who-table");
  const head = make("thead", {}, make("tr", {}, ...WHO_HEADS.map((word) => make("th", { scope: "col" }, word))));
  const body = make("tbody");
  table.append(head, body);

  return {
    update(members, detail) {
      const focused = body.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.name : null;
      body.replaceChildren(...members.slice(0, MOST_ROWS).map((member) => row(member, pick)));
      if (focused !== null) [...body.children].find((one) => one.dataset.name === focused)?.querySelector("button").focus({ preventScroll: true });
      const unseen = members.length - MOST_ROWS;
      const steps = new Set(detail.audits.map((audit) => audit[2]));
      const of = steps.size === 1 ? "Audits are of the work of step " + whole([...steps][0]) + "." : steps.size ? "Audits are of several steps." : "No audits.";
      say(byId("who-words"), of + (unseen > 0 ? " " + whole(unseen) + " more members are not listed." : ""));
    },
    picked(name) {
      for (const one of body.children) {
        const chosen = one.dataset.name === name;
        one.dataset.picked = String(chosen);
        one.querySelector("button").setAttribute("aria-pressed", String(chosen));
      }
    },
  };
}

function row(member, pick) {
  const name = make("button", { type: "button", class: "link", "aria-pressed": "false" }, nameOf(member.name, 18));
  name.addEventListener("click", () => pick(member.name));
  const made = make("tr", {},
    make("td", { class: "who-name" }, name, member.liar ? " *" : ""),
    make("td", {}, ROLES[member.role]),
    make("td", {}, member.parts.slice(0, 12).map(whole).join(", ") || "\u2013"),
    make("td", { class: "words" }, listed([...new Set(member.audits)], 2) || "\u2013"),
    make("td", { class: "words" }, listed([...new Set(member.auditors)], 2) || "\u2013"));
  made.dataset.name = member.name;
  return made;
}
