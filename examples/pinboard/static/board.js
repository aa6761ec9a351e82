// A board: its pages come as one scrolls, its moves are saved, and what was
// removed can be had back at once.

import { ApiError, call } from "./api.js";
import { Sorter } from "./sorter.js";
import { announce, toast } from "./telling.js";

// How early the next page is loaded: about a page of cards, so that scrolling
// to an end that has just moved still comes near enough.
const AHEAD = "2000px";
const LOOKED_THROUGH = 40; // pages, to find the pin that the address names

export function startBoard(list) {
  const board = new Board(list);
  board.watchEnd();
  if (list.hasAttribute("data-own")) board.watchOwner();
  board.showNamed();
}

function isWeb(link) {
  try {
    return ["http:", "https:"].includes(new URL(link).protocol);
  } catch (error) {
    if (error instanceof TypeError) return false;
    throw error;
  }
}

class Board {
  constructor(list) {
    this.list = list;
    this.template = document.querySelector("template[data-card]");
    this.more = document.querySelector("[data-more]");
    this.moreBox = document.querySelector("[data-more-box]");
    this.loading = null;
    this.saving = Promise.resolve();
    this.saved = 0;
  }

  // -- pages

  get next() {
    return this.more.dataset.after || null;
  }

  set next(bookmark) {
    this.more.dataset.after = bookmark ?? "";
    this.more.search = new URLSearchParams({ after: bookmark ?? "" });
    this.moreBox.hidden = !bookmark;
  }

  watchEnd() {
    this.observer = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting)) this.loadMore();
      },
      { rootMargin: AHEAD },
    );
    this.observer.observe(this.moreBox);
    this.more.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.loadMore();
    });
  }

  fetchPage(after) {
    const query = after ? `?${new URLSearchParams({ after })}` : "";
    return call("GET", this.list.dataset.url + query);
  }

  loadMore() {
    if (!this.next) return Promise.resolve();
    this.loading ??= this.appendPage().finally(() => {
      this.loading = null;
    });
    return this.loading;
  }

  async appendPage() {
    let page;
    try {
      page = await this.fetchPage(this.next);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      // The link stays, to try again; scrolling would ask without end.
      this.observer.unobserve(this.moreBox);
      toast(error.message);
      return;
    }
    // One that was dragged past the bookmark meanwhile is there already.
    const shown = new Set(this.ids());
    const fresh = page.pins.filter((pin) => !shown.has(pin.id));
    this.list.append(...fresh.map((pin) => this.makeCard(pin)));
    this.next = page.next;
    if (fresh.length) announce(`${fresh.length} more pins.`);
    // It reports changes only: the end may still be in sight.
    this.observer.unobserve(this.moreBox);
    this.observer.observe(this.moreBox);
  }

  // Find the pin that the address names, if it is further down.
  async showNamed() {
    const named = location.hash.startsWith("#pin-");
    if (!named || this.find(location.hash.slice(5))) return;
    for (let count = 0; this.next && count < LOOKED_THROUGH; count += 1) {
      const before = this.next;
      await this.loadMore();
      if (this.find(location.hash.slice(5)) || this.next === before) break;
    }
    if (this.find(location.hash.slice(5))) location.replace(location.hash);
  }

  // -- cards

  ids() {
    return this.cards().map((card) => card.dataset.pinId);
  }

  cards() {
    return [...this.list.querySelectorAll("[data-pin-id]")];
  }

  find(id) {
    return this.cards().find((card) => card.dataset.pinId === id);
  }

  makeCard(pin) {
    const copy = this.template.content.cloneNode(true);
    const card = copy.querySelector("[data-pin-id]");
    const blank = card.dataset.pinId;
    card.dataset.pinId = pin.id;
    card.id = `pin-${pin.id}`;
    for (const [selector, name] of [["a", "href"], ["form", "action"]]) {
      for (const element of card.querySelectorAll(selector)) {
        if (element.hasAttribute("data-link")) continue;
        const path = element.getAttribute(name);
        element.setAttribute(name, path.replace(blank, pin.id));
      }
    }
    return this.fillCard(card, pin);
  }

  fillCard(card, pin) {
    card.className = `card hue-${pin.hue} tone-${pin.tone}`;
    for (const element of card.querySelectorAll("[data-fill]")) {
      element.textContent = pin[element.dataset.fill];
    }
    const link = card.querySelector("[data-link]");
    // Links that no browser understands, such as http://1.2.3.4.5/, are stored
    // too: without a host to go to, the page is to go on.
    link.removeAttribute("href");
    if (isWeb(pin.link)) link.href = pin.link;
    return card;
  }

  // Show the order as it is on the server, as far as it was shown.
  async reload() {
    this.sorter?.cancel();
    const wanted = this.ids().length;
    const pins = new Map();
    let after = this.list.dataset.start || null;
    do {
      const page = await this.fetchPage(after);
      for (const pin of page.pins) pins.set(pin.id, pin);
      after = page.next;
    } while (after && pins.size < wanted);
    const cards = [...pins.values()].map((pin) => {
      const card = this.find(pin.id);
      return card ? this.fillCard(card, pin) : this.makeCard(pin);
    });
    // A card may have been lifted in the meantime.
    this.sorter?.cancel();
    this.list.replaceChildren(...cards);
    this.next = after;
  }

  // -- what the owner does

  watchOwner() {
    this.sorter = new Sorter(this.list, {
      onDrop: (card, putBack) => this.saveMove(card, putBack),
      onEnd: () => this.loadMore(),
    });
    this.list.addEventListener("submit", (event) => {
      event.preventDefault();
      this.remove(event.target.closest("[data-pin-id]"));
    });
  }

  saveMove(card, putBack) {
    const move = {
      pin: card.dataset.pinId,
      before: card.previousElementSibling?.dataset.pinId ?? null,
      after: card.nextElementSibling?.dataset.pinId ?? null,
    };
    // One after the other: the second may name the first as a neighbour.
    this.saving = this.saving.then(() => this.sendMove(move, putBack));
  }

  async sendMove(move, putBack) {
    this.list.setAttribute("aria-busy", "true");
    try {
      await call("POST", this.list.dataset.movesUrl, move);
      this.saved += 1;
      this.list.dataset.saved = this.saved;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      await this.recover(error, putBack);
    } finally {
      this.list.removeAttribute("aria-busy");
    }
  }

  async recover(error, putBack) {
    if (error.status !== 409 && error.status !== 404) {
      putBack();
      this.say(`Not saved. ${error.message}`);
      return;
    }
    try {
      await this.reload();
      this.say(`${error.message} This is the order now.`);
    } catch (second) {
      if (!(second instanceof ApiError)) throw second;
      putBack();
      this.say(`Not saved. ${second.message}`);
    }
  }

  say(text) {
    toast(text);
    announce(text);
  }

  async remove(card) {
    const id = card.dataset.pinId;
    const title = card.querySelector("[data-link]").textContent;
    const next = card.nextElementSibling ?? card.previousElementSibling;
    try {
      await call("DELETE", this.list.dataset.pinUrl + id);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.say(`Not removed. ${error.message}`);
      return;
    }
    card.remove();
    next?.querySelector('[data-action="remove"]').focus();
    this.count(-1);
    toast(`Removed “${title}”.`, {
      label: "Undo",
      name: "undo",
      run: () => this.restore(id),
    });
    announce(`Removed ${title}.`);
  }

  async restore(id) {
    try {
      await call("POST", `${this.list.dataset.pinUrl}${id}/restore`);
      this.count(+1);
      await this.reload();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.say(`Not restored. ${error.message}`);
      return;
    }
    this.find(id)?.querySelector("[data-handle]").focus();
    announce("Restored to its place.");
  }

  count(change) {
    const add = (selector, amount) => {
      const element = document.querySelector(selector);
      element.textContent = Number(element.textContent) + amount;
      return Number(element.textContent);
    };
    add("[data-count]", change);
    const removed = add("[data-removed-count]", -change);
    document.querySelector("[data-removed-link]").hidden = removed === 0;
    document.querySelector("[data-empty]").hidden =
      this.ids().length > 0 || Boolean(this.next) || change > 0;
  }
}
