// Pages are complete without this: it requests a page again when the server
// says that something has changed, and adds the theme and the tips of maps.

const main = document.querySelector("main");
const indicator = document.querySelector("[data-live]");

// -- theme

const toggle = document.querySelector("[data-theme-toggle]");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () =>
  (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
const showTheme = () => toggle.setAttribute("aria-pressed", String(isDark()));
toggle.hidden = false;
toggle.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("sqla-shard-theme", theme);
  showTheme();
});
dark.addEventListener("change", showTheme);
showTheme();

// -- live pages

let digest = main.dataset.digest;
let wanted = digest;
let isLoading = false;

const show = (state, text) => {
  indicator.dataset.state = state;
  indicator.querySelector("span").textContent = text;
};

// An element of the page that is replaced, by what does not change.
const keyOf = (element) =>
  element?.id ? `#${CSS.escape(element.id)}`
    : element?.getAttribute?.("href") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]`
      : null;

const replaceParts = (fresh) => {
  for (const part of document.querySelectorAll("[data-part]")) {
    const other = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!other || other.innerHTML === part.innerHTML) continue;
    const focused = part.contains(document.activeElement) ? keyOf(document.activeElement) : null;
    part.replaceChildren(...other.childNodes);
    if (focused) part.querySelector(focused)?.focus({ preventScroll: true });
  }
};

const refresh = async () => {
  if (isLoading) return;
  isLoading = true;
  try {
    while (wanted !== digest) {
      const target = wanted;
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!response.ok) return show("lost", "cannot be read");
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      replaceParts(fresh);
      // A value that has changed since is announced by another event.
      digest = target;
      main.dataset.shown = digest;
    }
    show("live", "live");
  } catch {
    // The server has ended; the stream reconnects when it is there again.
    show("lost", "no connection");
  } finally {
    isLoading = false;
  }
};

let stream = null;
const listen = () => {
  stream = new EventSource(`${main.dataset.events}?topic=${main.dataset.topic}`);
  stream.addEventListener("open", () => show("live", "live"));
  stream.addEventListener("error", () => show("lost", "no connection"));
  stream.addEventListener("message", (event) => {
    wanted = event.data;
    refresh();
  });
};
const stop = () => {
  stream?.close();
  stream = null;
};
if (main.dataset.events) {
  // A browser opens six connections to a server: hidden pages need none.
  document.addEventListener("visibilitychange", () => {
    stop();
    if (!document.hidden) listen();
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", () => stream ?? listen());
}

// -- maps: which shard is under the pointer

const rangesOf = (block) => block.dataset.shards.split(",").map((text) => text.split("-").map(Number));
const shardAt = (block, event) => {
  const svg = block.querySelector("svg");
  const box = svg.getBoundingClientRect();
  const columns = Number(block.dataset.columns);
  const rows = Number(block.dataset.rows);
  const x = Math.floor(((event.clientX - box.left) / box.width) * columns);
  const y = Math.floor(((event.clientY - box.top) / box.height) * rows);
  if (x < 0 || y < 0 || x >= columns || y >= rows) return null;
  let index = y * columns + x;
  for (const [first, last] of rangesOf(block)) {
    if (first + index <= last) return first + index;
    index -= last - first + 1;
  }
  return null;
};

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);

main.addEventListener("pointermove", (event) => {
  const block = event.target.closest?.("[data-shards]");
  const shard = block && shardAt(block, event);
  tip.hidden = shard === null || !block;
  if (tip.hidden) return;
  const level = document.elementFromPoint(event.clientX, event.clientY)?.closest("path[class]");
  const name = level?.classList[0];
  const legend = name && block.closest("section").querySelector(`[data-level="${name}"]`);
  tip.textContent = `shard ${shard}${legend ? ` · ${legend.textContent.trim()}` : ""}`;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
});
main.addEventListener("pointerleave", () => { tip.hidden = true; });
main.addEventListener("click", (event) => {
  const block = event.target.closest("[data-shards]");
  if (!block || event.detail === 0 || event.ctrlKey || event.metaKey) return;
  const shard = shardAt(block, event);
  if (shard === null) return;
  event.preventDefault();
  location.href = block.dataset.link.replace(/0$/, String(shard));
});
