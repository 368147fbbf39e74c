// The page: its tabs, and the first image.

import { chosen, loadScenes } from "./chosen.js";
import { followRunning, startExamine, takeDropped } from "./examine.js";
import { start as startInside } from "./inside.js";
import { $, say } from "./page.js";
import { pickScene, start as startTurn, take } from "./turn.js";

const tabs = [...document.querySelectorAll('[role="tab"]')];

function open(tab) {
  for (const other of tabs) {
    const isOpen = other === tab;
    other.setAttribute("aria-selected", String(isOpen));
    other.tabIndex = isOpen ? 0 : -1;
    const panel = document.getElementById(other.getAttribute("aria-controls"));
    panel.hidden = !isOpen;
    if (isOpen) panel.dispatchEvent(new Event("open"));
  }
}

for (const [number, tab] of tabs.entries()) {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(number + step + tabs.length) % tabs.length];
    next.focus();
    open(next);
  });
}

// What is dropped is an image, but where a model is examined: there it is the model, or an archive.
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", (event) => event.relatedTarget === null && document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const files = [...event.dataTransfer.files];
  if (!files.length) return;
  if ($("examine").hidden) take(files[0]);
  else takeDropped(files);
});

startTurn();
startInside();
startExamine();
try {
  await loadScenes();
  followRunning();
  await pickScene(chosen.scenes[0].name);
} catch (error) {
  say(error.message);
}
