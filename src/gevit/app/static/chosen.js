// What is being looked at, in all tabs: a scene (models and their kind of image) and one of its images.

import { ask } from "./api.js";

const listeners = [];
let latest = 0;

export const chosen = { scenes: [], parts: 8, scene: null, image: null, label: null };

export const onChoice = (listener) => listeners.push(listener);

export async function loadScenes() {
  Object.assign(chosen, await ask("lab"));
}

// Who asked last gets it, whichever answer comes first.
async function choose(answer) {
  const mine = ++latest;
  try {
    const choice = await answer;
    if (mine !== latest) return;
    const { note = "", ...rest } = choice;
    Object.assign(chosen, { label: null }, rest);
    for (const listener of listeners) listener(note);
  } catch (error) {
    if (mine === latest) throw error;
  }
}

export const chooseScene = (name) => choose(ask(`scenes/${name}`).then((scene) => {
  const sample = scene.samples[Math.min(scene.opening, scene.samples.length - 1)];
  return { scene, image: sample?.image ?? null, label: sample?.label ?? null };
}));

export const chooseSample = (sample) => choose(sample);

// Take a file, or what was drawn, which may still be a promise.
export function chooseFile(file, drawn = false) {
  const path = `scenes/${chosen.scene.name}/images${drawn ? "?drawn=1" : ""}`;
  return choose(Promise.resolve(file).then((body) => ask(path, { method: "POST", body })));
}

export const imagePath = (image = chosen.image) => `scenes/${chosen.scene.name}/images/${image}`;
