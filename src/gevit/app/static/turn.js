// Turn: an image, a dial, and the answers of the models as it moves.

import { Newest, ask, query } from "./api.js";
import { Cards, TITLES, top } from "./cards.js";
import { chooseFile, chooseSample, chooseScene, chosen, imagePath, onChoice } from "./chosen.js";
import { Dial } from "./dial.js";
import { Pad } from "./pad.js";
import { paintColours } from "./paint.js";
import { $, ROUNDING, element, say, segments, svg, unsay } from "./page.js";
import { Polar } from "./polar.js";

const STILL = { flip: false, right: 0, down: 0 };
const FULL_TURN = 9000; // milliseconds

let move = { ...STILL };
let cards = null;
let sweep = null; // of the present image, flip and shift: its part requests and their answers
let playing = 0;
let speech = 0;

const dial = new Dial($("dial"), () => {
  stopPlaying();
  refresh();
});
const pad = new Pad($("pad"), () => drawn.request(true));
const polars = {
  probability: new Polar($("probability"), "Probability over the full turn, by model"),
  error: new Polar($("error"), "Distance of the features from those of the upright image over the full turn, by model"),
};

const turned = new Newest(
  (wish) => ask(`${wish.path}/turn?${query(wish.move)}`).then((answer) => ({ ...answer, wish })),
  (answer) => show(answer),
  (error) => say(error.message, "dial"),
);

const drawn = new Newest(
  () => chooseFile(pad.file(), true),
  () => {},
  (error) => say(error.message),
);

// What was drawn and is not sent yet is not wanted any more.
function clearPad() {
  drawn.drop();
  pad.clear();
}

function refresh() {
  $("angle").textContent = `${Math.round(dial.angle)}°`;
  $("flip").setAttribute("aria-pressed", String(move.flip));
  if (!chosen.image) return;
  const wish = { angle: dial.angle, flip: Number(move.flip), right: move.right, down: move.down };
  turned.request({ path: imagePath(), move: wish });
}

function show(answer) {
  if (answer.wish.path !== imagePath()) return;
  unsay("dial");
  const now = { ...answer.wish.move, exact: answer.exact };
  paintColours(dial.canvas, answer.pixels, chosen.scene.size);
  cards.show(answer.answers, now);
  const about = shownClass(answer.answers);
  polars.probability.mark(now.angle, answer.answers.map(({ probabilities }) => probabilities[about]));
  polars.error.mark(now.angle, answer.answers.map(({ error }) => error));
  $("verdict").textContent = verdict(answer.answers, now);
  $("turn").dataset.shown = `${now.angle} ${now.flip}`;
  clearTimeout(speech);
  speech = setTimeout(() => ($("spoken").textContent = `At ${Math.round(now.angle)} degrees. ${cards.spoken(answer.answers)}.`), 700);
  startSweep(about);
}

const shownClass = (answers) => chosen.label ?? top(answers[0].still);

function verdict(answers, now) {
  const shifted = now.right || now.down;
  if (now.angle === 0 && !now.flip && !shifted) return "Drag the blue knob around the image, or press ▶ Full turn, and watch the bars. The thin marks stay where the bars were upright.";
  const kept = answers[0].change < ROUNDING;
  const others = answers.slice(1).filter(({ change }) => change >= ROUNDING).length;
  if (kept && others) return "The same answer, to the last digit that the machine computes: the move only permutes what the equivariant network pools over. To the others it is another image.";
  if (kept) return "The same answer, to the last digit that the machine computes: the move only permutes what the network pools over.";
  if (shifted) return "A shift brings the border nearer and moves the grid on which the networks pool: the answer is about the same, and not exactly.";
  const { in_group: inGroup, promised } = answers[0];
  if (!now.exact) return `Between quarter turns pixels are interpolated${inGroup ? "" : ", and the group has no such element"}: every model may move. Snap to 90°, 180° or 270° to see the exact zero.`;
  if (promised) return "This model should not have moved here: look inside to find the layer that does.";
  if (inGroup) return "This move is in the group of the model, but its positional encoding, that of GSA-Nets, breaks the symmetry: look inside to find the layer that does.";
  return "This move is not in the group of the model, so nothing is promised for it.";
}

// The full turn is asked for in parts, each of which refines the curves; moves of the dial come in between.
async function startSweep(about) {
  const { flip, right, down } = move;
  const key = `${imagePath()} ${flip} ${right} ${down}`;
  if (sweep?.key === key) return;
  const mine = (sweep = { key, found: [] });
  for (let part = 0; part < chosen.parts; part++) {
    try {
      mine.found.push(await ask(`${imagePath()}/sweep?${query({ part, flip: Number(flip), right, down })}`));
    } catch {
      return; // the dial says what is wrong
    }
    if (sweep !== mine) return;
    drawSweep(mine.found, about);
  }
  $("polars").dataset.whole = key;
}

function drawSweep(found, about) {
  const lines = (value) => chosen.scene.models.map(({ role }, k) => ({
    role,
    points: found.flatMap(({ angles, answers }) => angles.map((angle, i) => [angle, value(answers[k], i)])).sort(([a], [b]) => a - b),
  }));
  const probabilities = lines((answer, i) => answer.probabilities[i][about]);
  const errors = lines((answer, i) => answer.errors[i]);
  const most = Math.max(0.1, ...errors.flatMap(({ points }) => points.map(([, value]) => value)));
  const name = chosen.scene.classes[about];
  $("probability-title").textContent = `Probability of “${name}” over the full turn`;
  polars.probability.draw(probabilities, 1, percentLabel);
  polars.error.draw(errors, most, percentLabel);
  addKeys();
  refresh();
}

const percentLabel = (share) => `${Math.round(100 * share)}%`;

function addKeys() {
  for (const id of ["probability", "error"]) {
    const key = element("p", { class: "key" }, chosen.scene.models.map(({ role }) =>
      element("span", {}, svg("svg", { viewBox: "0 0 26 8", class: role, "aria-hidden": "true" }, svg("line", { x1: 0, y1: 4, x2: 26, y2: 4 })), TITLES[role])));
    $(id).append(key);
  }
}

function training() {
  const { models } = chosen.scene;
  const scores = models.filter(({ accuracy }) => accuracy).map(({ role, accuracy }) => `${TITLES[role]} ${accuracy}`);
  return [
    chosen.scene.training || (models[0].data && `Trained on ${models[0].data}.`),
    scores.length ? `Right on test images as they are: ${scores.join(", ")}.` : "",
    "One image shows little: the tab Examine my model counts over many of them how often each is right as they turn.",
  ].filter(Boolean).join(" ");
}

function showChoice(note) {
  stopPlaying();
  say("");
  const { scene } = chosen;
  if (cards?.scene !== scene) {
    cards = Object.assign(new Cards($("cards"), scene), { scene });
    $("training").textContent = training();
    $("drawing").hidden = scene.channels !== 1;
    showKinds();
    $("samples").replaceChildren(...scene.samples.map(sampleButton));
    $("samples").parentElement.hidden = !scene.samples.length;
  }
  for (const button of $("samples").children) button.setAttribute("aria-pressed", String(button.dataset.image === chosen.image));
  $("note").textContent = note || (chosen.image ? "" : begin());
  $("bench").hidden = $("turns").hidden = !chosen.image;
  sweep = null;
  refresh();
}

function begin() {
  const { wanted } = chosen.scene;
  return `Open or drop an image to begin.${wanted ? ` There will be samples once the data set is here: gevit data prepare ${wanted}` : ""}`;
}

function showKinds() {
  const kinds = chosen.scenes.map(({ name, title }) => ({ value: name, title }));
  segments($("kinds"), kinds, chosen.scene?.name, pickScene);
}

function sampleButton({ image, label }) {
  const name = chosen.scene.classes[label];
  return element("button", {
    type: "button", "data-image": image, "aria-label": `sample: ${name}`, title: name, onclick: () => {
      clearPad();
      chooseSample({ image, label });
    },
  }, element("img", { src: `/api/${imagePath(image)}.png`, alt: "", width: 44, height: 44 }));
}

export async function pickScene(name) {
  try {
    $("note").textContent = "Reading images and models…";
    await chooseScene(name);
  } catch (error) {
    $("note").textContent = "";
    say(error.message);
  }
}

export async function take(file) {
  try {
    $("note").textContent = "Reading the image…";
    clearPad();
    await chooseFile(file);
  } catch (error) {
    $("note").textContent = "";
    say(`${file.name}: ${error.message}`);
  }
}

function stopPlaying() {
  cancelAnimationFrame(playing);
  playing = 0;
  $("play").textContent = "▶ Full turn";
}

function play() {
  if (playing) return stopPlaying();
  const from = dial.angle;
  const start = performance.now();
  $("play").textContent = "❚❚ Stop";
  const step = (now) => {
    const share = Math.min(1, (now - start) / FULL_TURN);
    dial.set(Math.round(from + 360 * share));
    refresh();
    if (share < 1) playing = requestAnimationFrame(step);
    else stopPlaying();
  };
  playing = requestAnimationFrame(step);
}

export function start() {
  onChoice(showChoice);
  $("turn").addEventListener("open", showKinds); // a model may have been loaded
  $("left").addEventListener("click", () => dial.turn(90 * (Math.floor(dial.angle / 90) + 1)));
  $("right").addEventListener("click", () => dial.turn(90 * (Math.ceil(dial.angle / 90) - 1)));
  $("play").addEventListener("click", play);
  $("flip").addEventListener("click", () => {
    move.flip = !move.flip;
    refresh();
  });
  $("reset").addEventListener("click", () => {
    move = { ...STILL };
    dial.turn(0);
  });
  for (const button of document.querySelectorAll("[data-shift]")) {
    button.addEventListener("click", () => {
      const [right, down] = button.dataset.shift.split(",").map(Number);
      const most = Math.floor(chosen.scene.size / 3);
      move.right = Math.max(-most, Math.min(most, move.right + right));
      move.down = Math.max(-most, Math.min(most, move.down + down));
      refresh();
    });
  }
  $("clear").addEventListener("click", clearPad);
  $("file").addEventListener("change", (event) => {
    if (event.target.files[0]) take(event.target.files[0]);
    event.target.value = "";
  });
}
