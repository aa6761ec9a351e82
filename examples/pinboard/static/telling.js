// What is said to the user: aloud by screen readers, and in toasts.

const announcer = document.querySelector("[data-announcer]");
const toasts = document.querySelector("[data-toasts]");

const SHOWN_MS = 8000;

export function announce(text) {
  announcer.textContent = text;
}

// Show a message for some seconds, with a button if there is an action.
export function toast(text, action = null) {
  const box = document.createElement("div");
  box.className = "toast";
  box.setAttribute("role", "status");
  const line = document.createElement("p");
  line.textContent = text;
  box.append(line);
  if (action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = action.label;
    button.dataset.action = action.name;
    button.addEventListener("click", () => {
      box.remove();
      action.run();
    });
    box.append(button);
  }
  toasts.replaceChildren(box);
  let timer = setTimeout(() => box.remove(), SHOWN_MS);
  // The button must not disappear while the pointer moves to it.
  box.addEventListener("pointerenter", () => clearTimeout(timer));
  box.addEventListener("focusin", () => clearTimeout(timer));
  box.addEventListener("pointerleave", () => {
    timer = setTimeout(() => box.remove(), SHOWN_MS);
  });
}
