// Look inside: feature maps and attention of one model, for the image and for the transformed image.

import { Newest, ask, askPicture, bytes, query } from "./api.js";
import { TITLES } from "./cards.js";
import { chosen, imagePath, onChoice } from "./chosen.js";
import { paintColours, paintLevels, paintOver } from "./paint.js";
import { $, ROUNDING, element, say, segments, smallNumber, unsay } from "./page.js";

const wish = { model: 0, element: 1, layer: null, channel: "", attention: null, row: 0.5, column: 0.5 };
let scene = null;
let picture = null; // of the image as it is, red, green and blue

const fail = (error) => say(error.message, "inside");

// Answers about what is not looked at any more are not shown.
const shownIfCurrent = (show) => (found, { path, model }) => path === imagePath() && model === wish.model && show(found);

const maps = new Newest(
  ({ path, ...values }) => ask(`${path}/maps?${query(values)}`),
  shownIfCurrent(showMaps),
  fail,
);

const attention = new Newest(
  ({ path, ...values }) => ask(`${path}/attention?${query(values)}`),
  shownIfCurrent(showAttention),
  fail,
);

const model = () => chosen.scene.models[wish.model];

const elementName = () => model().elements[wish.element];

function refresh() {
  const isEmpty = !chosen.image;
  $("inside-empty").hidden = !isEmpty;
  $("inside-full").hidden = isEmpty;
  if (isEmpty || $("inside").hidden) return;
  if (scene !== chosen.scene) {
    scene = chosen.scene;
    Object.assign(wish, { model: 0, element: Math.min(1, model().elements.length - 1) });
    chooseModel(0);
    return;
  }
  showChoices();
  const path = imagePath();
  maps.request({ path, model: wish.model, layer: wish.layer, element: wish.element, channel: wish.channel });
  point();
}

function point() {
  if (!wish.attention) return;
  attention.request({
    path: imagePath(), model: wish.model, layer: wish.attention, element: wish.element, row: wish.row, column: wish.column,
  });
}

function chooseModel(number) {
  wish.model = Number(number);
  const { layers, attention: looking, elements } = model();
  if (!layers.includes(wish.layer)) wish.layer = layers.find((name) => name.includes("block")) ?? layers[0];
  if (!looking.includes(wish.attention)) wish.attention = looking[0] ?? null;
  wish.element = Math.min(wish.element, elements.length - 1);
  wish.channel = "";
  refresh();
}

function showChoices() {
  segments($("models"), chosen.scene.models.map(({ role }, k) => ({ value: String(k), title: TITLES[role] })), String(wish.model), chooseModel);
  const moves = model().elements.map((title, k) => ({ value: String(k), title })).slice(1);
  segments($("elements"), moves, String(wish.element), (value) => {
    wish.element = Number(value);
    refresh();
  });
  options($("layer"), model().layers, wish.layer);
  options($("attention-layer"), model().attention, wish.attention);
}

function options(select, names, current) {
  select.replaceChildren(...names.map((name) => element("option", { value: name, selected: name === current }, name)));
}

const canvas = (label) => element("canvas", { role: "img", "aria-label": label });

function showMaps(found) {
  unsay("inside");
  const elements = found.order > 1 ? model().elements : ["no rotations"];
  const size = found.width * found.height;
  const levels = bytes(found.maps);
  const difference = bytes(found.difference);
  const name = elementName();
  const rows = [
    ["The image", "its maps F(x)", null, 0],
    [`${name}`, "the transformed image, its maps F(gx)", found.moved, 1],
    ["Promised", "the maps of the image, transformed: g F(x)", "", 2],
    ["Difference", "of the two rows above, all channels", "", 3],
  ].map(([title, note, image, row]) => {
    const cells = elements.map((h, k) => {
      const drawn = canvas(`${title}, orientation ${h}`);
      if (row < 3) paintLevels(drawn, levels.subarray((row * found.order + k) * size, (row * found.order + k + 1) * size), found.width, found.height, "map");
      else paintLevels(drawn, difference.subarray(k * size, (k + 1) * size), found.width, found.height, "error");
      return element("td", {}, drawn);
    });
    const first = element("td");
    if (image === null) paintColours(first.appendChild(canvas("the image")), picture, chosen.scene.size);
    else if (image) paintColours(first.appendChild(canvas("the transformed image")), image, chosen.scene.size);
    return element("tr", {}, element("th", { scope: "row" }, title, element("small", {}, note)), first, element("td", { class: "gap" }), cells);
  });
  $("maps").replaceChildren(
    element("thead", {}, element("tr", {}, element("td"), element("th", { scope: "col" }, "image"), element("td"), elements.map((h) => element("th", { scope: "col" }, h)))),
    element("tbody", {}, rows),
  );
  options($("channel"), Array.from({ length: found.channels }, (_, k) => String(k)), String(found.channel));
  tell($("maps-number"), found, `of ${found.layer}, all ${found.channels} channels`);
}

function tell(box, found, what) {
  const same = found.error < ROUNDING;
  box.className = `number ${same ? "same" : "other"}`;
  box.dataset.error = found.error;
  const note = same ? (found.error ? ` exact, but for rounding of ${smallNumber(found.error)}` : " exact")
    : found.exact ? " of the largest value: not equivariant" : " of the largest value: this rotation interpolates pixels, so nothing is exact";
  box.replaceChildren(`Largest difference ${what}: `, element("b", {}, same ? "0" : `${found.error < 0.1 ? (100 * found.error).toPrecision(2) : Math.round(100 * found.error)}%`), note);
}

function showAttention(found) {
  const { size } = chosen.scene;
  const elements = found.order > 1 ? model().elements : ["all"];
  const area = found.width * found.height;
  const levels = bytes(found.maps);
  const moved = bytes(found.moved);
  for (const [which, id, image, names] of [[0, "attention-still", picture, elements], [1, "attention-moved", moved, found.order > 1 ? found.becomes : ["all"]]]) {
    const rows = Array.from({ length: found.heads }, (_, head) => element("tr", {},
      element("th", { scope: "row" }, `head ${head + 1}`),
      names.map((h, k) => {
        const at = ((which * found.heads + head) * found.order + k) * area;
        const drawn = canvas(`head ${head + 1}, orientation ${h}`);
        paintOver(drawn, image, size, levels.subarray(at, at + area), found.width, found.height);
        return element("td", {}, drawn);
      })));
    $(id).replaceChildren(
      element("caption", {}, which ? `transformed: ${elementName()}` : "the image"),
      element("thead", {}, element("tr", {}, element("td"), names.map((h) => element("th", { scope: "col" }, h)))),
      element("tbody", {}, rows));
  }
  const [row, column] = found.pixel;
  $("pixel").textContent = `Pixel in row ${row + 1}, column ${column + 1} of the ${found.height} x ${found.width} pixels of this layer.`;
  Object.assign($("cross").style, {
    left: `${(100 * column) / found.width}%`, top: `${(100 * row) / found.height}%`,
    width: `${100 / found.width}%`, height: `${100 / found.height}%`,
  });
  $("target").dataset.pixel = found.pixel.join(",");
  $("target").dataset.step = 1 / found.height;
  tell($("attention-number"), found, "when lined up by the group");
}

async function loadPicture() {
  if (!chosen.image) return;
  const path = imagePath();
  const { size } = chosen.scene;
  const image = await askPicture(`${path}.png`);
  if (path !== imagePath()) return; // another one was chosen meanwhile
  const sheet = new OffscreenCanvas(size, size).getContext("2d");
  sheet.drawImage(image, 0, 0);
  const { data } = sheet.getImageData(0, 0, size, size);
  picture = Uint8Array.from({ length: 3 * size * size }, (_, k) => data[4 * Math.floor(k / 3) + (k % 3)]);
  paintColours($("target-image"), picture, size);
}

async function open() {
  try {
    if (!$("inside").hidden) await loadPicture();
    refresh();
  } catch (error) {
    fail(error);
  }
}

function aim(event) {
  const box = $("target").getBoundingClientRect();
  wish.row = Math.min(0.999, Math.max(0, (event.clientY - box.top) / box.height));
  wish.column = Math.min(0.999, Math.max(0, (event.clientX - box.left) / box.width));
  point();
}

export function start() {
  onChoice(open);
  $("inside").addEventListener("open", open);
  for (const [id, name] of [["layer", "layer"], ["channel", "channel"], ["attention-layer", "attention"]]) {
    $(id).addEventListener("change", (event) => {
      wish[name] = event.target.value;
      if (name === "layer") wish.channel = "";
      refresh();
    });
  }
  const target = $("target");
  target.addEventListener("pointerdown", (event) => {
    target.setPointerCapture(event.pointerId);
    aim(event);
  });
  target.addEventListener("pointermove", (event) => target.hasPointerCapture(event.pointerId) && aim(event));
  target.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const step = Number(target.dataset.step);
    wish.row = Math.min(0.999, Math.max(0, wish.row + down * step));
    wish.column = Math.min(0.999, Math.max(0, wish.column + right * step));
    point();
  });
}
