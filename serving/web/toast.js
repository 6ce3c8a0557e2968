// Short messages at the foot of the page: failures with a way to try again, and what screen readers should hear.

import { el } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 9000;
const shelf = document.getElementById("toasts");
const live = document.getElementById("live");

/** Tells assistive technology what changed, without moving focus. */
export function announce(text) {
  live.textContent = "";
  // Emptied first and filled a moment later, so that the same sentence twice is read twice.
  setTimeout(() => (live.textContent = text), 60);
}

/** A failure: its sentence and, where it makes sense, a "Try again" that runs `retry`. */
export function fail(sentence, retry) {
  const close = () => note.remove();
  const buttons = [
    retry && el("button", { type: "button", class: "quiet strong", on: { click: () => (close(), retry()) } }, "Try again"),
    el("button", { type: "button", class: "quiet", on: { click: close } }, "Dismiss"),
  ];
  const note = el("div", { class: "toast bad", role: "alert" }, icon("alert"), el("p", {}, sentence), el("div", { class: "toast-buttons" }, buttons));
  shelf.append(note);
  while (shelf.children.length > 3) shelf.firstElementChild.remove();
}

/** Good news that goes by itself. */
export function tell(sentence) {
  const note = el("div", { class: "toast" }, icon("check"), el("p", {}, sentence));
  shelf.append(note);
  announce(sentence);
  setTimeout(() => note.remove(), SHOWN_MS);
}
