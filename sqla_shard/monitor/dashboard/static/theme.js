// Before the first paint, or a page would flash in the other theme.
const stored = localStorage.getItem("sqla-shard-theme");
if (stored === "light" || stored === "dark") {
  document.documentElement.dataset.theme = stored;
}
