// The page of an import: refuses large files at once, and follows progress.

import { ApiError, call } from "./api.js";

const PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 5000;

export function startImport(main) {
  const form = main.querySelector('[data-form="import"]');
  form.addEventListener("submit", (event) => checkSize(form, event));
  const panel = main.querySelector("[data-import-progress]");
  if (panel && panel.dataset.state === "running") follow(panel, form);
}

function checkSize(form, event) {
  const [file] = form.elements.file.files;
  if (!file || file.size <= Number(form.dataset.maxBytes)) return;
  event.preventDefault();
  let alert = form.querySelector('[role="alert"]');
  if (!alert) {
    alert = document.createElement("p");
    alert.className = "alert";
    alert.setAttribute("role", "alert");
    form.prepend(alert);
  }
  alert.textContent = "This file is too large: 4 MB at most.";
}

async function follow(panel, form) {
  let pause = PAUSE_MS;
  while (panel.dataset.state === "running") {
    await new Promise((resolve) => setTimeout(resolve, pause));
    try {
      show(panel, await call("GET", panel.dataset.url));
      pause = PAUSE_MS;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 0 || error.status >= 500) {
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      } else {
        show(panel, { state: "failed", message: error.message });
      }
    }
  }
  form.hidden = false;
}

const TITLES = { done: "Imported", failed: "The import stopped" };

function show(panel, progress) {
  const { state, done, boards, message } = progress;
  if (done !== undefined) {
    panel.querySelector("progress").value = done;
    panel.querySelector("[data-import-done]").textContent = done;
    panel.querySelector("[data-import-boards]").textContent = boards;
  }
  if (state === "running") return;
  panel.querySelector("[data-import-title]").textContent = TITLES[state];
  panel.querySelector("[data-import-link]").hidden = false;
  if (state === "failed") {
    const alert = panel.querySelector("[data-import-message]");
    alert.textContent = message;
    alert.hidden = false;
  }
  panel.dataset.state = state;
}
