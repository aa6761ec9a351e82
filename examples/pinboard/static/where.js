// "Where it lives" in a sheet over the page; a page of its own without.

import { toast } from "./telling.js";

export function startWhere(sheet) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[data-action="where"]');
    const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey;
    if (!link || !isPlain || event.button !== 0) return;
    event.preventDefault();
    show(sheet, link.href);
  });
  // A click on the sheet itself is one beside its content: the backdrop.
  sheet.addEventListener("click", (event) => {
    if (event.target !== sheet) return;
    const box = sheet.getBoundingClientRect();
    const inside =
      event.clientX >= box.left && event.clientX <= box.right &&
      event.clientY >= box.top && event.clientY <= box.bottom;
    if (!inside) sheet.close();
  });
}

async function show(sheet, url) {
  let section;
  try {
    const response = await fetch(url);
    const text = await response.text();
    // Escaped by the server like any page; scripts in it would not run.
    const page = new DOMParser().parseFromString(text, "text/html");
    section = page.querySelector("[data-where]");
  } catch (error) {
    console.warn(url, error);
  }
  if (!section) {
    toast("The server did not return the location.");
    return;
  }
  const close = document.createElement("button");
  close.type = "button";
  close.className = "button close";
  close.textContent = "Close";
  close.addEventListener("click", () => sheet.close());
  sheet.replaceChildren(close, document.adoptNode(section));
  if (!sheet.open) sheet.showModal();
  sheet.scrollTop = 0;
}
