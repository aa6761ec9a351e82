// Starts what a page needs; each page says what it is in data-page.

import { startBoard } from "./board.js";
import { startImport } from "./import.js";
import { startWhere } from "./where.js";

const main = document.querySelector("main");

startWhere(document.querySelector("[data-sheet]"));

const list = document.querySelector("[data-pins]");
if (list) startBoard(list);
if (main.dataset.page === "import") startImport(main);
