// What is being looked at, in all tabs: a scene (models and their kind of image) and one of its images.

import { ask } from "./api.js";

const listeners = [];

export const chosen = { scenes: [], parts: 8, scene: null, image: null, label: null };

export const onChoice = (listener) => listeners.push(listener);

export async function loadScenes() {
  Object.assign(chosen, await ask("lab"));
}

export async function chooseScene(name) {
  const scene = await ask(`scenes/${name}`);
  chosen.scene = scene;
  const first = scene.samples[Math.min(7, scene.samples.length - 1)];
  chooseImage(first?.image ?? null, first?.label ?? null);
}

export function chooseImage(image, label = null, note = "") {
  Object.assign(chosen, { image, label });
  for (const listener of listeners) listener(note);
}

// Take a file, or what was drawn.
export async function sendImage(file, drawn = false) {
  const { image, note } = await ask(`scenes/${chosen.scene.name}/images${drawn ? "?drawn=1" : ""}`, { method: "POST", body: file });
  return { image, note };
}

export const imagePath = (image = chosen.image) => `scenes/${chosen.scene.name}/images/${image}`;
