// One card for each model: what it answers, how sure it is of every class, and how far that is from its answer upright.

import { ROUNDING, element, percent, smallNumber } from "./page.js";

export const TITLES = { equivariant: "Equivariant", twin: "GSA twin", plain: "Plain", yours: "Your model" };

function whatItIs(model) {
  const size = `${model.name}, ${model.parameters.toLocaleString("en")} parameters`;
  return {
    equivariant: `Equivariant to ${symmetries(model)} by construction. ${size}.`,
    twin: `The same network with the positions of GSA-Nets, which break the symmetry. ${size}.`,
    plain: `The same network without rotations (Z2). ${size}.`,
    yours: `${model.group}, ${model.encoding} encoding. ${size}.`,
  }[model.role];
}

const symmetries = (model) => (model.group.startsWith("Dihedral") ? "rotations by 90° and flips" : "rotations by 90°");

export class Cards {
  constructor(box, scene) {
    this.classes = scene.classes;
    const long = Math.max(...scene.classes.map((name) => name.length)) > 3;
    box.className = `cards${long ? " long" : ""}`;
    box.style.setProperty("--models", scene.models.length);
    this.cards = scene.models.map((model) => new Card(model, scene.classes, long));
    box.replaceChildren(...this.cards.map((card) => card.box));
  }

  show(answers, move) {
    this.cards.forEach((card, k) => card.show(answers[k], move));
  }

  spoken(answers) {
    return this.cards.map((card, k) => {
      const best = top(answers[k].probabilities);
      const same = answers[k].change < ROUNDING ? "as upright" : "not as upright";
      return `${TITLES[card.model.role]}: ${this.classes[best]}, ${percent(answers[k].probabilities[best])}, ${same}`;
    }).join(". ");
  }
}

export const top = (values) => values.indexOf(Math.max(...values));

class Card {
  constructor(model, classes, long) {
    this.model = model;
    this.classes = classes;
    this.answer = element("b");
    this.sure = element("span");
    this.rows = classes.map((name) => {
      const bar = element("i");
      const mark = element("u");
      const value = element("span", { class: "value" });
      const row = element("li", {}, element("span", { class: "name", title: name }, name),
        element("span", { class: "track", "aria-hidden": "true" }, bar, mark), value);
      return { row, bar, mark, value };
    });
    this.number = element("b", { "data-change": "" });
    this.reason = element("span");
    this.change = element("p", { class: "change" }, "Answer moved by ", this.number, element("br"), this.reason);
    this.box = element("article", { class: `card ${model.role}`, "aria-label": TITLES[model.role] },
      element("h2", {}, TITLES[model.role]),
      element("p", { class: "what" }, whatItIs(model)),
      element("p", { class: `says${long ? " long" : ""}` }, this.answer, this.sure),
      element("ol", { class: "bars" }, this.rows.map(({ row }) => row)),
      this.change);
  }

  show(answer, move) {
    const best = top(answer.probabilities);
    this.answer.textContent = this.classes[best];
    this.sure.textContent = percent(answer.probabilities[best]);
    this.rows.forEach(({ row, bar, mark, value }, k) => {
      row.className = k === best ? "top" : "";
      row.dataset.probability = answer.probabilities[k];
      bar.style.transform = `scaleX(${answer.probabilities[k]})`;
      mark.style.left = `${100 * answer.still[k]}%`;
      value.textContent = percent(answer.probabilities[k]);
    });
    const same = answer.change < ROUNDING;
    this.box.dataset.change = answer.change;
    this.change.className = `change ${same ? "same" : "other"}`;
    this.number.textContent = same ? "0" : `${(100 * answer.change).toFixed(answer.change < 0.01 ? 2 : 0)} points`;
    this.reason.textContent = same ? (answer.change ? `exact, but for rounding of ${smallNumber(answer.change)}` : "exact") : reason(this.model, answer, move);
  }
}

function reason(model, answer, move) {
  if (move.right || move.down) return "a shift: the border and the grid of pooling are in the way";
  if (!move.exact) return "between quarter turns: new pixels, so nothing is exact";
  if (answer.in_group) return "in its group, but its layers do not commute with it";
  if (move.flip && !model.group.startsWith("Dihedral") && model.order > 1) return `a flip is not among its ${model.order} rotations`;
  return model.order > 1 ? "this move is not in its group" : "it knows no rotations or flips";
}
