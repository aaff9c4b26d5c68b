// @ts-check
// The step as a ring: members around it, the parts they own inside, an arrow from each auditor to its target.

import { ROLES } from "./roles.js";
import { byId, count, draw, make, say, shown, whole } from "./words.js";

const MOST_NAMED = 48; // members whose names have room around the ring
const MOST_CHORDS = 3000;
let middle = 280; // of the picture, whose size follows the box: letters keep theirs

export function startRing({ pick }) {
  const box = byId("ring-picture");
  byId("ring-legend").append(...ringLegend());
  let places = new Map();

  return {
    /** Draw members, as `rolesOf` made them, of one step. */
    update(members, detail) {
      const most = members.length <= 12 ? 430 : 560;
      const size = Math.max(300, Math.min(most, box.clientWidth || most));
      middle = size / 2;
      const picture = draw("svg", { role: "img", "aria-label": ringWords(members, detail) });
      places = placesOf(members);
      const crowded = members.length > MOST_NAMED;
      const names = crowded ? notable(members) : new Set(members.map((member) => member.name));
      const radius = middle - (crowded && !names.size ? 16 : Math.min(88, size * (crowded ? 0.2 : 0.25)));
      const high = 2 * radius + 64; // names need room beside the ring, hardly above it
      picture.setAttribute("viewBox", "0 " + (middle - high / 2) + " " + size + " " + high);
      picture.style.setProperty("max-width", size + "px");
      picture.append(arrow(), draw("circle", { class: "circle", cx: middle, cy: middle, r: radius }));
      const chords = draw("g");
      const strength = Math.max(0.1, Math.min(0.65, 30 / Math.max(1, detail.audits.length)));
      chords.style.setProperty("--strength", String(strength));
      const inner = radius - (crowded ? 14 : 36);
      for (const [auditor, target] of detail.audits.slice(0, MOST_CHORDS)) {
        const from = places.get(auditor);
        const to = places.get(target);
        if (from !== undefined && to !== undefined) chords.append(chord(auditor, target, from, to, inner));
      }
      picture.append(chords);
      for (const member of members) picture.append(peer(member, places.get(member.name), radius, members.length, names, pick));
      box.replaceChildren(picture);
      say(byId("ring-words"), ringWords(members, detail));
    },

    /** Set off one member, or none. */
    picked(name) {
      box.dataset.picked = String(name !== null && places.has(name));
      for (const one of box.querySelectorAll(".chord, .peer")) {
        one.classList.toggle("picked", one.dataset.from === name || one.dataset.to === name);
      }
    },
  };
}

function placesOf(members) {
  return new Map(members.map((member, at) => [member.name, (2 * Math.PI * at) / members.length - Math.PI / 2]));
}

/** In a crowd only those are named who audit or are tried, and only where their names have room. */
function notable(members) {
  const names = new Set();
  const every = Math.ceil(members.length / MOST_NAMED);
  let free = 0; // the next place around the ring at which a name has room
  members.forEach((member, at) => {
    if (at < free || !(member.role === "banned" || (member.audits.length && member.role === "validator"))) return;
    names.add(member.name);
    free = at + every;
  });
  return names;
}

function point(angle, radius) {
  return [middle + radius * Math.cos(angle), middle + radius * Math.sin(angle)];
}

function arrow() {
  const tip = draw("path", { d: "M0,0 L7,3 L0,6 Z", class: "tip" });
  return draw("defs", {}, draw("marker", { id: "tip", viewBox: "0 0 7 6", refX: 6, refY: 3, markerWidth: 7, markerHeight: 6, orient: "auto", markerUnits: "userSpaceOnUse" }, tip));
}

function chord(auditor, target, from, to, radius) {
  const [x, y] = point(from, radius);
  const [right, down] = point(to, radius);
  const pull = 0.45; // towards the middle, so that arrows between neighbours can be seen
  const bend = [(x + right) / 2 + (middle - (x + right) / 2) * pull, (y + down) / 2 + (middle - (y + down) / 2) * pull];
  const line = draw("path", {
    class: "chord", "marker-end": "url(#tip)",
    d: "M" + x.toFixed(1) + "," + y.toFixed(1) + " Q" + bend.map((one) => one.toFixed(1)).join(",") + " " + right.toFixed(1) + "," + down.toFixed(1),
  });
  line.dataset.from = auditor;
  line.dataset.to = target;
  return line;
}

function peer(member, angle, radius, members, names, pick) {
  const [x, y] = point(angle, radius);
  const size = members > 120 ? 3.5 : members > MOST_NAMED ? 5 : members > 24 ? 7 : 10;
  const group = draw("g", { class: "peer" }, shape(member.role, x, y, size), draw("title", {}, memberWords(member)));
  group.dataset.from = member.name;
  group.addEventListener("click", () => pick(member.name));
  if (!names.has(member.name)) return group;
  const [right, down] = point(angle, radius + size + 7);
  const side = Math.cos(angle);
  const anchor = Math.abs(side) < 0.25 ? "middle" : side > 0 ? "start" : "end";
  const lift = Math.abs(side) < 0.25 ? (Math.sin(angle) < 0 ? 0 : 9) : 4;
  group.append(draw("text", { x: right.toFixed(1), y: (down + lift).toFixed(1), "text-anchor": anchor }, shown(member.name, 11) + (member.liar ? " *" : "")));
  if (member.parts.length && members <= MOST_NAMED) {
    const [inX, inY] = point(angle, radius - size - 13);
    const words = member.parts.slice(0, 2).join(",") + (member.parts.length > 2 ? "\u2026" : "");
    group.append(draw("text", { class: "parts", x: inX.toFixed(1), y: (inY + 4).toFixed(1), "text-anchor": "middle" }, words));
  }
  return group;
}

/** Each role has a shape of its own. */
function shape(role, x, y, size) {
  const at = (dx, dy) => (x + dx * size).toFixed(1) + "," + (y + dy * size).toFixed(1);
  const kind = "mark role-" + role;
  if (role === "validator") return draw("path", { class: kind, d: "M" + [at(0, -1.2), at(1.2, 0), at(0, 1.2), at(-1.2, 0)].join(" L") + " Z" });
  if (role === "candidate") return draw("path", { class: kind, d: "M" + [at(0, -1.1), at(1.1, 0.9), at(-1.1, 0.9)].join(" L") + " Z" });
  if (role !== "banned") return draw("circle", { class: kind, cx: x.toFixed(1), cy: y.toFixed(1), r: size });
  const cross = "M" + at(-0.5, -0.5) + " L" + at(0.5, 0.5) + " M" + at(0.5, -0.5) + " L" + at(-0.5, 0.5);
  return draw("g", {},
    draw("rect", { class: kind, x: (x - size).toFixed(1), y: (y - size).toFixed(1), width: 2 * size, height: 2 * size }),
    draw("path", { class: "cross", d: cross }));
}

function memberWords(member) {
  return shown(member.name) + ", " + ROLES[member.role] + (member.parts.length ? ", owns part " + member.parts.slice(0, 8).join(", ") : "");
}

function ringWords(members, detail) {
  const of = (role) => members.filter((member) => member.role === role).length;
  const words = "Step " + whole(detail.step) + ": " + count(of("contributor"), "contributor") + ", " +
    (of("validator") ? count(of("validator"), "validator") + ", " : "") + count(detail.audits.length, "audit") + (of("silent") ? ", " + whole(of("silent")) + " silent" : "");
  const everyone = members.length > 2 && new Set(detail.audits.map(([auditor]) => auditor)).size > 0.8 * members.length;
  return words + "." + (everyone ? " Everyone audits." : "") + (detail.closing ? " The closing step." : "");
}

function ringLegend() {
  const entry = (role) => make("li", {}, glyph(shape(role, 10, 10, 7)), ROLES[role]);
  const line = draw("path", { class: "chord", d: "M2,14 Q10,2 18,14" });
  return [entry("contributor"), entry("validator"), entry("silent"), entry("candidate"), entry("banned"),
    make("li", {}, glyph(line), "audits"), make("li", {}, "numbers: parts that a contributor owns")];
}

function glyph(drawing) {
  return draw("svg", { class: "glyph", viewBox: "0 0 20 20", "aria-hidden": "true" }, drawing);
}
