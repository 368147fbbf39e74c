// A ring to turn the image in its middle with: mouse, finger, pen or arrow keys. Near a quarter turn it snaps.

import { svg } from "./page.js";

const RADIUS = 118;
const SNAP = 4;

export const wrapped = (angle) => ((angle % 360) + 360) % 360;

// The angle is counter-clockwise, as in the library; the knob points to where the top of the image went.
export const onRing = (angle, radius) => {
  const turn = (angle * Math.PI) / 180;
  return [150 - radius * Math.sin(turn), 150 - radius * Math.cos(turn)];
};

export class Dial {
  constructor(box, onTurn) {
    this.onTurn = onTurn;
    this.angle = 0;
    const ticks = Array.from({ length: 24 }, (_, k) => {
      const [x1, y1] = onRing(15 * k, RADIUS - 11);
      const [x2, y2] = onRing(15 * k, RADIUS - (k % 6 ? 4 : -8));
      return svg("line", { x1, y1, x2, y2, class: k % 6 ? "tick" : "tick main" });
    });
    const names = [0, 90, 180, 270].map((angle) => {
      const [x, y] = onRing(angle, RADIUS + 25);
      return svg("text", { x, y }, `${angle}°`);
    });
    this.travelled = svg("path", { class: "travelled" });
    this.knob = svg("circle", { class: "knob", r: 13 });
    this.ring = svg("svg", {
      viewBox: "-8 -8 316 316", role: "slider", tabindex: 0, "aria-label": "Rotation of the image, counter-clockwise",
      "aria-valuemin": 0, "aria-valuemax": 359, "aria-orientation": "horizontal",
    }, svg("circle", { class: "band", cx: 150, cy: 150, r: RADIUS }), this.travelled, ticks, names, this.knob);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "The image as the models see it");
    box.append(this.ring, this.canvas);
    this.ring.addEventListener("pointerdown", (event) => this.grab(event));
    this.ring.addEventListener("pointermove", (event) => this.drag(event));
    this.ring.addEventListener("keydown", (event) => this.press(event));
    this.show();
  }

  grab(event) {
    this.ring.setPointerCapture(event.pointerId);
    this.drag(event);
  }

  drag(event) {
    if (!this.ring.hasPointerCapture(event.pointerId)) return;
    const box = this.ring.getBoundingClientRect();
    const right = event.clientX - box.left - box.width / 2;
    const up = box.top + box.height / 2 - event.clientY;
    if (Math.hypot(right, up) < 8) return;
    const angle = wrapped((Math.atan2(-right, up) * 180) / Math.PI);
    const quarter = 90 * Math.round(angle / 90);
    this.turn(Math.abs(angle - quarter) <= SNAP ? quarter : Math.round(angle));
  }

  press(event) {
    const step = event.shiftKey ? 15 : 1;
    const to = {
      ArrowLeft: this.angle + step, ArrowUp: this.angle + step, ArrowRight: this.angle - step, ArrowDown: this.angle - step,
      PageUp: this.angle + 90, PageDown: this.angle - 90, Home: 0, End: 180,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.turn(to);
  }

  turn(angle) {
    this.set(angle);
    this.onTurn(this.angle);
  }

  set(angle) {
    this.angle = wrapped(angle);
    this.show();
  }

  show() {
    const [x, y] = onRing(this.angle, RADIUS);
    this.knob.setAttribute("cx", x);
    this.knob.setAttribute("cy", y);
    const far = this.angle > 180 ? 1 : 0;
    this.travelled.setAttribute("d", this.angle ? `M150 ${150 - RADIUS} A${RADIUS} ${RADIUS} 0 ${far} 0 ${x} ${y}` : "");
    this.ring.setAttribute("aria-valuenow", Math.round(this.angle));
    const exact = this.angle % 90 === 0 ? ", a quarter turn: exact" : "";
    this.ring.setAttribute("aria-valuetext", `${Math.round(this.angle)} degrees${exact}`);
  }
}
