// A quantity over the full turn, one line for each model; upright is at the top, counter-clockwise as on the dial.

import { TITLES } from "./cards.js";
import { onRing } from "./dial.js";
import { svg } from "./page.js";

const RADIUS = 112;

export class Polar {
  constructor(box, label) {
    Object.assign(this, { box, label, angle: 0, values: [], most: 1 });
    this.draw([], 1, String);
  }

  // Lines are {role, points: [[angle, value]]}, in the order of angles.
  draw(lines, most, name) {
    this.most = most;
    const rings = [0.25, 0.5, 0.75, 1].map((share) => svg("circle", { class: "grid", cx: 150, cy: 150, r: RADIUS * share }));
    const names = [0.5, 1].map((share) => {
      const [x, y] = onRing(-22, RADIUS * share);
      return svg("text", { x: x + 2, y: y - 2 }, name(share * most));
    });
    const spokes = [0, 90, 180, 270].map((angle) => {
      const [x, y] = onRing(angle, RADIUS);
      const [tx, ty] = onRing(angle, RADIUS + 14);
      return [svg("line", { class: "grid", x1: 150, y1: 150, x2: x, y2: y }),
        svg("text", { x: tx, y: ty, "text-anchor": "middle", "dominant-baseline": "middle" }, `${angle}°`)];
    });
    const paths = lines.map(({ role, points }) =>
      svg("path", { class: role, d: points.length ? `M${points.map((point) => this.place(...point).join(" ")).join("L")}Z` : "" }));
    this.hand = svg("line", { class: "now", x1: 150, y1: 150 });
    this.spots = lines.map(({ role }) => svg("circle", { class: `spot ${role}`, r: 4.5 }));
    const ranges = lines.map(({ role, points }) => {
      const values = points.map(([, value]) => value);
      return `${TITLES[role]} from ${name(Math.min(...values))} to ${name(Math.max(...values))}`;
    });
    const picture = svg("svg", { viewBox: "10 10 280 280", role: "img", "aria-label": [this.label, ...ranges].join(". "), class: "rose" },
      rings, spokes, paths, this.hand, this.spots, names);
    this.box.replaceChildren(picture);
    this.mark(this.angle, this.values);
  }

  place(angle, value) {
    return onRing(angle, RADIUS * Math.min(1, Math.max(0, value / this.most))).map((x) => Number(x.toFixed(2)));
  }

  mark(angle, values) {
    Object.assign(this, { angle, values });
    const [x, y] = onRing(angle, RADIUS);
    this.hand.setAttribute("x2", x);
    this.hand.setAttribute("y2", y);
    this.spots.forEach((spot, k) => {
      spot.style.visibility = values[k] === undefined ? "hidden" : "visible";
      if (values[k] === undefined) return;
      const [cx, cy] = this.place(angle, values[k]);
      spot.setAttribute("cx", cx);
      spot.setAttribute("cy", cy);
    });
  }
}
