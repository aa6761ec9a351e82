// Puts the cards of a list into another order, by pointer or keyboard.
//
// While a pointer drags a card, the card itself flies (position: fixed) and
// an empty place shows where it would land; it stays where it is in the
// document, because a touch ends when its element is taken out.

import { announce } from "./telling.js";

const THRESHOLD = 5; // pixels before a press becomes a drag
const EDGE = 90; // pixels from the edge of the window where it scrolls
const SPEED = 18; // pixels of each frame, at most
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Sorter {
  // onDrop(card, putBack) is called when a card has got another place.
  constructor(list, { onDrop, onEnd }) {
    this.list = list;
    this.onDrop = onDrop;
    this.onEnd = onEnd;
    this.drag = null;
    this.lift = null;
    list.addEventListener("pointerdown", (event) => this.press(event));
    list.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("focusout", (event) => this.leave(event));
  }

  cards() {
    return [...this.list.querySelectorAll("[data-pin-id]")];
  }

  cancel() {
    if (this.drag) this.endDrag(false);
    if (this.lift) this.putDown(false);
  }

  // -- pointer

  press(event) {
    const handle = event.target.closest("[data-handle]");
    const isMouse = event.pointerType === "mouse";
    const grabbed =
      handle ?? (isMouse ? event.target.closest("[data-grab]") : null);
    if (!grabbed || event.button !== 0 || this.drag || !event.isPrimary) {
      return;
    }
    if (!handle) event.preventDefault(); // no selection of text
    this.cancel();
    const abort = new AbortController();
    this.drag = {
      card: grabbed.closest("[data-pin-id]"),
      pointer: event.pointerId,
      startX: event.clientX,
      startY: event.clientY,
      x: event.clientX,
      y: event.clientY,
      place: null,
      abort,
    };
    const listen = (type, handler) =>
      window.addEventListener(type, handler, { signal: abort.signal });
    listen("pointermove", (moved) => this.moved(moved));
    listen("pointerup", (ended) => this.released(ended));
    listen("pointercancel", (ended) => {
      if (ended.pointerId === this.drag?.pointer) this.endDrag(false);
    });
    listen("keydown", (pressed) => {
      if (pressed.key === "Escape") this.endDrag(false);
    });
  }

  moved(event) {
    const drag = this.drag;
    if (event.pointerId !== drag.pointer) return;
    drag.x = event.clientX;
    drag.y = event.clientY;
    const far = Math.hypot(drag.x - drag.startX, drag.y - drag.startY);
    if (!drag.place && far < THRESHOLD) return;
    if (!drag.place) this.take();
    this.follow();
  }

  released(event) {
    if (event.pointerId !== this.drag.pointer) return;
    this.endDrag(true);
  }

  // The card leaves its place.
  take() {
    const { card } = this.drag;
    const box = card.getBoundingClientRect();
    const place = document.createElement("li");
    place.className = "place";
    place.style.height = `${box.height}px`;
    card.before(place);
    card.style.width = `${box.width}px`;
    card.style.height = `${box.height}px`;
    card.style.left = `${box.left}px`;
    card.style.top = `${box.top}px`;
    card.classList.add("flying");
    document.documentElement.classList.add("dragging");
    this.drag.place = place;
    this.drag.home = this.following(place);
    this.frame();
  }

  follow() {
    const { card, startX, startY, x, y } = this.drag;
    card.style.translate = `${x - startX}px ${y - startY}px`;
    this.findPlace(x, y);
  }

  frame() {
    const drag = this.drag;
    if (!drag?.place) return;
    const above = Math.max(0, EDGE - drag.y);
    const below = Math.max(0, drag.y - (window.innerHeight - EDGE));
    const step = (Math.min(below, EDGE) - Math.min(above, EDGE)) / EDGE;
    if (step) {
      window.scrollBy({ top: step * SPEED, behavior: "instant" });
      this.findPlace(drag.x, drag.y);
    }
    requestAnimationFrame(() => this.frame());
  }

  findPlace(clientX, clientY) {
    const { card, place } = this.drag;
    const origin = this.list.getBoundingClientRect();
    const x = clientX - origin.left;
    const y = clientY - origin.top;
    const others = [...this.list.children].filter((one) => one !== card);
    // By layout, not by what is drawn: cards may be sliding to their places.
    const over = others.find(
      (one) =>
        x >= one.offsetLeft && x <= one.offsetLeft + one.offsetWidth &&
        y >= one.offsetTop && y <= one.offsetTop + one.offsetHeight,
    );
    const last = others.at(-1);
    if (over === place) return;
    if (over) {
      const forward = others.indexOf(over) > others.indexOf(place);
      const middle = over.offsetTop + over.offsetHeight / 2;
      // With one column, cards of unlike heights would jump to and fro.
      const isList = this.columns(others) === 1;
      if (isList && (forward ? y < middle : y > middle)) return;
      this.slide(() => (forward ? over.after(place) : over.before(place)));
    } else if (last !== place && y > last.offsetTop + last.offsetHeight) {
      this.slide(() => last.after(place));
    } else if (others[0] !== place && y < 0) {
      this.slide(() => others[0].before(place));
    }
  }

  endDrag(isDrop) {
    const drag = this.drag;
    this.drag = null;
    drag.abort.abort();
    if (!drag.place) return;
    const { card, place, home } = drag;
    const from = card.getBoundingClientRect();
    document.documentElement.classList.remove("dragging");
    card.classList.remove("flying");
    card.removeAttribute("style");
    const target = isDrop ? this.following(place) : home;
    place.remove();
    this.list.insertBefore(card, target);
    this.glide(card, from);
    if (isDrop && target !== home) this.dropped(card, home);
  }

  // The card after an element, leaving out the one that flies.
  following(element) {
    let next = element.nextElementSibling;
    while (next && next.classList.contains("flying")) {
      next = next.nextElementSibling;
    }
    return next;
  }

  // -- keyboard

  key(event) {
    const handle = event.target.closest("[data-handle]");
    if (!handle || this.drag) return;
    const isTrigger = event.key === " " || event.key === "Enter";
    if (!this.lift) {
      if (!isTrigger || event.repeat) return;
      event.preventDefault();
      this.pickUp(handle);
      return;
    }
    if (isTrigger) {
      event.preventDefault();
      if (!event.repeat) this.putDown(true);
    } else if (event.key === "Escape") {
      event.preventDefault();
      this.putDown(false);
    } else {
      const index = this.target(event.key);
      if (index === null) return;
      event.preventDefault();
      this.moveTo(index);
    }
  }

  pickUp(handle) {
    const card = handle.closest("[data-pin-id]");
    this.lift = { card, handle, home: card.nextElementSibling };
    card.classList.add("lifted");
    handle.setAttribute("aria-pressed", "true");
    const cards = this.cards();
    const position = cards.indexOf(card) + 1;
    announce(`Lifted. Position ${position} of ${cards.length}.`);
  }

  target(key) {
    const cards = this.cards();
    const index = cards.indexOf(this.lift.card);
    const columns = this.columns(cards);
    const goals = {
      ArrowUp: index - columns,
      ArrowDown: index + columns,
      ArrowLeft: index + STEPS.ArrowLeft,
      ArrowRight: index + STEPS.ArrowRight,
      Home: 0,
      End: cards.length - 1,
    };
    if (!(key in goals)) return null;
    return Math.max(0, Math.min(cards.length - 1, goals[key]));
  }

  moveTo(index) {
    const { card, handle } = this.lift;
    const cards = this.cards();
    const from = cards.indexOf(card);
    if (index !== from) {
      // Moving the focused element takes the focus away for a moment.
      this.lift.isMoving = true;
      this.slide(() =>
        index > from ? cards[index].after(card) : cards[index].before(card),
      );
      handle.focus({ preventScroll: true });
      this.lift.isMoving = false;
      card.scrollIntoView({ block: "nearest" });
    }
    announce(`Position ${index + 1} of ${cards.length}.`);
    if (index === cards.length - 1) this.onEnd();
  }

  putDown(isDrop) {
    const { card, handle, home } = this.lift;
    card.classList.remove("lifted");
    handle.removeAttribute("aria-pressed");
    if (isDrop) {
      this.lift = null;
      const position = this.cards().indexOf(card) + 1;
      announce(`Dropped at position ${position}.`);
      if (card.nextElementSibling !== home) this.dropped(card, home);
      return;
    }
    this.lift.isMoving = true;
    this.putBack(card, home);
    handle.focus({ preventScroll: true });
    this.lift = null;
    announce("Put back.");
  }

  leave(event) {
    if (!this.lift || this.lift.isMoving) return;
    if (event.target === this.lift.handle) this.putDownQuietly();
  }

  // The user went elsewhere: it is put back, and the focus left alone.
  putDownQuietly() {
    const { card, handle, home } = this.lift;
    this.lift = null;
    card.classList.remove("lifted");
    handle.removeAttribute("aria-pressed");
    this.putBack(card, home);
    announce("Put back.");
  }

  // -- both

  dropped(card, home) {
    this.onDrop(card, () => this.putBack(card, home));
  }

  putBack(card, home) {
    if (!card.isConnected || (home && !home.isConnected)) return;
    this.slide(() => this.list.insertBefore(card, home));
  }

  columns(elements) {
    const top = elements[0]?.offsetTop;
    const other = elements.findIndex((one) => one.offsetTop !== top);
    return other === -1 ? Math.max(1, elements.length) : other;
  }

  // Change the order, and let the cards slide to their places.
  slide(change) {
    const cards = this.cards().filter(
      (one) => !one.classList.contains("flying"),
    );
    const before = new Map(
      cards.map((one) => [one, one.getBoundingClientRect()]),
    );
    change();
    for (const [card, box] of before) this.glide(card, box);
  }

  glide(card, from) {
    if (still.matches) return;
    const to = card.getBoundingClientRect();
    const x = from.left - to.left;
    const y = from.top - to.top;
    if (!x && !y) return;
    card.animate(
      [{ translate: `${x}px ${y}px` }, { translate: "0 0" }],
      { duration: 180, easing: "cubic-bezier(.2, .8, .3, 1)" },
    );
  }
}
