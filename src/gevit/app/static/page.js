// Elements by hand: text is always text, never HTML.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const element = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

export const percent = (share) => `${(100 * share).toFixed(1)}%`;

// Rounding of float32 is no change: the number is 0 but for that.
export const ROUNDING = 1e-5;

export function smallNumber(value) {
  if (value === 0) return "0";
  return value < 0.001 ? value.toExponential(0) : value.toPrecision(2);
}

export function say(problem, of = "") {
  $("problem").textContent = problem;
  $("problem").hidden = !problem;
  $("problem").dataset.of = of;
}

// The problem of one thing is over; that of another stays.
export function unsay(of) {
  if ($("problem").dataset.of === of) say("");
}

// One of several choices, as radio buttons that arrow keys walk through.
export function segments(box, choices, chosen, onChoose) {
  const buttons = choices.map(({ value, title }) =>
    element("button", {
      type: "button", role: "radio", "data-value": value, "aria-checked": String(value === chosen),
      tabindex: value === chosen ? 0 : -1, onclick: () => onChoose(value),
    }, title));
  const held = box.contains(document.activeElement);
  box.replaceChildren(...buttons);
  const current = buttons.find((button) => button.getAttribute("aria-checked") === "true") ?? buttons[0];
  if (current) current.tabIndex = 0;
  if (held) current?.focus();
  box.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.focus();
    onChoose(choices[buttons.indexOf(next)].value);
  };
}
