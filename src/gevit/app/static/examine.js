// Examine my model: which model, which images, how far it is, and what was found.

import { ask, query } from "./api.js";
import { TITLES, top } from "./cards.js";
import { chosen } from "./chosen.js";
import { paintColours } from "./paint.js";
import { $, element, percent, say, smallNumber, svg } from "./page.js";
import { packed } from "./tar.js";

const POLL = 400; // milliseconds
const PICKLED = /\.(pt|pth|ckpt|pkl|pickle|bin)$/i;
const MODEL_FILE = /\.(safetensors|json|pt|pth|ckpt|pkl|pickle|bin)$/i;
const ARCHIVE = /\.(zip|tar|gz|tgz|bz2|xz)$/i;
const uploads = []; // of images: {data, title}
let running = null; // the promise of the name of the examination that is followed: one at a time
let queue = Promise.resolve(); // loading and uploading

function fillSubjects(current) {
  const entries = chosen.scenes.flatMap((scene) => scene.models.map(({ role, name }, k) =>
    ({ value: `${scene.name} ${k}`, title: role === "yours" ? scene.title : `${scene.title}: ${TITLES[role]}, ${name}` })));
  $("subject").replaceChildren(...entries.map(({ value, title }) => element("option", { value, selected: value === current }, title)));
  fillSets();
}

function fillSets(current) {
  const scene = chosen.scenes.find(({ name }) => name === $("subject").value.split(" ")[0]);
  const sets = [...uploads].reverse().map(({ data, title }) => ({ value: data, title: `uploaded: ${title}` }));
  if (chosen.data) sets.push({ value: "named", title: chosen.data });
  if (scene?.data && scene.name !== "yours") sets.push({ value: "scene", title: scene.data });
  if (!sets.length) sets.push({ value: "", title: "none yet: upload some" });
  $("set").replaceChildren(...sets.map(({ value, title }) => element("option", { value, selected: value === current }, title)));
  showRunning();
}

// One after the other: what is said last is about what was asked for last.
function busy(text, work) {
  say("");
  queue = queue.then(async () => {
    say("");
    $("progress-text").textContent = text;
    try {
      await work();
    } catch (error) {
      say(error.message);
    } finally {
      $("progress-text").textContent = "";
    }
  });
  return queue;
}

function loadCheckpoint(files) {
  return busy("Loading the model…", async () => {
    const { weights, info } = modelFiles(files);
    const scene = await ask(`models?${query({ info: info.size })}`, { method: "POST", body: new Blob([info, weights]) });
    if (!chosen.scenes.some(({ name }) => name === scene.name)) chosen.scenes.unshift(scene);
    fillSubjects(`${scene.name} 0`);
    $("subject").dataset.loaded = scene.name;
  });
}

function modelFiles(files) {
  const of = (ending) => files.find(({ name }) => name.toLowerCase().endsWith(ending));
  const [weights, info] = [of(".safetensors"), of(".json")];
  const pickled = files.find(({ name }) => PICKLED.test(name));
  if (pickled) throw new Error(`${pickled.name} looks pickled, and a pickle can run any program: it is not opened. Choose model.safetensors and model.json.`);
  if (!weights || !info) throw new Error(`A model is two files, NAME.safetensors and NAME.json: choose both at once. There is no .${weights ? "json" : "safetensors"} among those chosen.`);
  return { weights, info };
}

function upload(body, title) {
  return busy(`Uploading ${title}…`, async () => {
    const { data } = await ask("data", { method: "POST", body });
    uploads.push({ data, title });
    fillSets(data);
  });
}

function start() {
  const [scene, model] = $("subject").value.split(" ");
  const wanted = { scene, model: Number(model), data: $("set").value, images: Number($("count").value) };
  say("");
  $("findings").hidden = true;
  $("progress").value = 0;
  return follow(ask("examinations", { method: "POST", body: JSON.stringify(wanted) }).then(({ examination }) => examination));
}

async function follow(examination) {
  running = examination;
  showRunning();
  try {
    await watch(await examination);
  } catch (error) {
    say(error.message);
  } finally {
    running = null;
    showRunning();
    $("progress-text").textContent = "";
  }
}

async function watch(examination) {
  for (;;) {
    const job = await ask(`examinations/${examination}`);
    $("progress").value = job.share;
    $("progress-text").textContent = job.share ? `${Math.round(100 * job.share)}%` : "reading images…";
    if (job.state === "failed") throw new Error(job.problem);
    if (job.state === "cancelled") return;
    if (job.state === "done") return show(job.result, examination);
    await new Promise((resolve) => setTimeout(resolve, POLL));
  }
}

function showRunning() {
  $("start").disabled = Boolean(running) || !$("set").value;
  for (const id of ["cancel", "progress"]) $(id).hidden = !running;
}

function show(found, examination) {
  const { labelled } = found;
  const low = Math.min(...labelled.accuracy);
  const worst = Math.max(...found.elements.filter(({ exact }) => exact).map(({ logits, feature_maps: maps }) => Math.max(logits.worst, maps.worst)));
  const tile = (name, value, note) => element("div", { class: "tile" }, element("dt", {}, name), element("dd", { class: "value" }, value), element("dd", { class: "note" }, note));
  $("findings").replaceChildren(
    element("div", { class: "go" },
      element("a", { class: "button primary", href: `/api/examinations/${examination}/report.html`, download: "" }, "Download the report"),
      element("span", { class: "quiet" }, "one HTML file that needs nothing else")),
    ...labelled.warnings.map((text) => element("p", {}, element("b", {}, "Warning: "), `${text}.`)),
    element("dl", { class: "tiles" },
      tile("equivariant?", found.group === "Cyclic(1)" ? "no group" : found.equivariant ? "yes" : "no", `${found.model} on ${found.group}; worst error ${smallNumber(worst)}`),
      tile("accuracy as given", percent(labelled.accuracy[0]), `${labelled.images} images of ${labelled.data}`),
      tile("worst angle", percent(low), labelled.accuracy.every((share) => share === low) ? "at every angle" : `at ${found.angles[labelled.accuracy.indexOf(low)]}°`),
      tile("always right", String(labelled.always_right), `at all ${found.angles.length} angles; ${labelled.changing} change, ${labelled.never_right} always wrong`)),
    element("h2", {}, "Equivariance"),
    errorTable(found),
    element("h2", {}, "Accuracy against the angle"),
    accuracyChart(found),
    element("h2", {}, "Wrong at some angle"),
    mistakes(found));
  $("findings").hidden = false;
}

function errorTable({ elements, others }) {
  const number = (errors) => element("td", {}, errors ? smallNumber(errors.worst) : "");
  const rows = [...elements, ...others].map(({ name, exact, note, logits, feature_maps: maps }) =>
    element("tr", {}, element("th", { scope: "row" }, name), number(logits), number(maps),
      element("td", { class: "words" }, note ?? (exact ? "in its group: 0 if it is equivariant" : "in its group, but interpolated: approximate"))));
  return element("div", {},
    element("p", { class: "quiet small" }, "By how much the logits (the scores of the classes) and the feature maps of the transformed images differ from what equivariance promises, as a share of the largest value: 0 is exact, rounding comes to about 1e-6, 1 is as large as what is measured."),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Equivariance errors" }, element("table", { class: "errors" },
      element("thead", {}, element("tr", {}, ["transformation", "logits", "feature maps", ""].map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, rows))));
}

function accuracyChart({ angles, labelled }) {
  const x = (angle) => 52 + (angle / 360) * 520;
  const y = (share) => 190 - share * 170;
  const points = [...angles, 360].map((angle, k) => `${x(angle).toFixed(1)} ${y(labelled.accuracy[k % angles.length]).toFixed(1)}`);
  const rows = [0, 0.5, 1].map((share) => [
    svg("line", { class: "grid", x1: 52, x2: 572, y1: y(share), y2: y(share) }),
    svg("text", { x: 46, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}%`)]);
  const columns = [0, 90, 180, 270, 360].map((angle) => svg("text", { x: x(angle), y: 210, "text-anchor": "middle" }, `${angle}°`));
  const label = `Accuracy from ${percent(Math.min(...labelled.accuracy))} to ${percent(Math.max(...labelled.accuracy))} over the full turn`;
  return element("figure", { class: "wide" }, svg("svg", { viewBox: "0 0 600 218", role: "img", "aria-label": label, class: "line" }, rows, columns, svg("path", { d: `M${points.join("L")}` })));
}

function mistakes({ labelled, classes, angles, size }) {
  if (!labelled.mistakes.length) return element("p", {}, "None of these images: the model is right at every angle.");
  const items = labelled.mistakes.map(({ name, label, probabilities, pixels }) => {
    const picture = element("canvas", { "aria-hidden": "true" });
    paintColours(picture, pixels, size);
    const answers = probabilities.map(top);
    const wrong = answers.filter((answer) => answer !== label).length;
    const taken = [...new Set(answers.filter((answer) => answer !== label))].map((answer) => classes[answer]).join(", ");
    const cells = answers.map((answer, k) => svg("rect", { x: (240 / answers.length) * k, y: 0, width: 240 / answers.length - 1.5, height: 16, rx: 2, class: answer === label ? "good" : "bad" },
      svg("title", {}, `${angles[k]}°: ${classes[answer]}`)));
    return element("li", {}, picture,
      element("p", { class: "quiet small" }, name),
      element("p", { class: "says" }, element("b", {}, classes[label]), ` wrong at ${wrong} of ${answers.length} angles, taken for ${taken}`),
      svg("svg", { viewBox: "0 0 240 16", role: "img", "aria-label": `wrong at ${wrong} of ${answers.length} angles`, preserveAspectRatio: "none" }, cells));
  });
  const legend = element("p", { class: "quiet small" }, `Each bar is the full turn from 0° to ${angles.at(-1)}°: blue where the model is right, orange where it is wrong. Those that change most come first.`);
  return element("div", {}, legend, element("ul", { class: "turns" }, items));
}

export function takeDropped(files) {
  if (files.some(({ name }) => MODEL_FILE.test(name))) return loadCheckpoint(files);
  if (files.length === 1 && ARCHIVE.test(files[0].name)) return upload(files[0], files[0].name);
  return busy("", () => {
    throw new Error("Drop the two files of a model, or an archive of images; a folder is taken by Upload a folder….");
  });
}

// Of a page that was reloaded, or of another one: the lab has one at a time.
export function followRunning() {
  if (chosen.examination) follow(Promise.resolve(chosen.examination));
}

export function startExamine() {
  $("examine").addEventListener("open", () => fillSubjects($("subject").value));
  $("subject").addEventListener("change", () => fillSets());
  $("start").addEventListener("click", start);
  $("cancel").addEventListener("click", () => running?.then((examination) => ask(`examinations/${examination}`, { method: "DELETE" })).catch((error) => say(error.message)));
  const take = (id, use) => $(id).addEventListener("change", async (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    if (files.length) await use(files);
  });
  take("checkpoint", loadCheckpoint);
  take("archive", ([file]) => upload(file, file.name));
  take("folder", (files) => upload(packed(files), files[0].webkitRelativePath.split("/")[0]));
}
