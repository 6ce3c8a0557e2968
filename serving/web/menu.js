// A card's overflow menu and the question before something that cannot be taken back.

import { el, uniqueId } from "./dom.js";
import { icon } from "./icons.js";

/**
 * A button with a menu under it. Arrow keys move, Escape closes and gives focus back, so does a click outside.
 * @param {string} label what the button is for
 * @param {{icon: string, text: string, run: Function, danger?: boolean}[]} entries
 */
export function overflowMenu(label, entries) {
  const id = uniqueId("menu");
  const items = entries.map((entry) =>
    el("button", { type: "button", role: "menuitem", tabindex: "-1", class: entry.danger ? "danger" : "", on: { click: () => (close(true), entry.run()) } },
      icon(entry.icon), entry.text));
  const button = el("button", { type: "button", class: "icon-button", "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": id, "aria-label": label }, icon("more"));
  const list = el("div", { class: "menu", role: "menu", id, hidden: true, "aria-label": label }, items);
  const box = el("div", { class: "menu-box" }, button, list);

  const outside = (event) => !box.contains(event.target) && close(false);
  function open(at) {
    list.hidden = false;
    button.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside);
    list.scrollIntoView({ block: "nearest" });
    items[at].focus({ preventScroll: true });
  }
  function close(giveBack) {
    if (list.hidden) return;
    list.hidden = true;
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
    if (giveBack) button.focus();
  }
  button.addEventListener("click", () => (list.hidden ? open(0) : close(true)));
  button.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      open(event.key === "ArrowDown" ? 0 : items.length - 1);
    }
  });
  list.addEventListener("keydown", (event) => {
    const at = items.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 }[event.key];
    if (next !== undefined) items[next % items.length].focus();
    else if (event.key === "Escape") close(true);
    else if (event.key === "Tab") return close(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return box;
}

/** Asks in a modal dialog; resolves to whether the answer was yes. */
export function confirm({ title, text, yes }) {
  return new Promise((resolve) => {
    const id = uniqueId("confirm");
    const dialog = el("dialog", { class: "confirm", "aria-labelledby": id },
      el("form", { method: "dialog" },
        el("h2", { id }, title),
        el("p", {}, text),
        el("div", { class: "confirm-buttons" },
          el("button", { value: "no", class: "quiet", autofocus: true }, "Cancel"),
          el("button", { value: "yes", class: "solid danger" }, yes))));
    const asked = document.activeElement;
    dialog.addEventListener("close", () => {
      dialog.remove();
      asked?.focus?.();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
