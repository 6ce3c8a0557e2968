// Whose feed this is: the searchable picker in the header and the viewer's own card beside the feed.

import { fetchPeople, fetchPerson } from "./api.js";
import { el } from "./dom.js";
import { face } from "./face.js";
import { icon } from "./icons.js";
import { plural } from "./words.js";

const PAGE = 200;
const MOST_LOADED = 4000;
const SHOWN = 40;
const TYPING_MS = 150;

const facts = (person) => [person.city, person.friends !== null && plural(person.friends, "friend")].filter(Boolean).join(" · ");

/**
 * The picker: a button that opens a search field over a list box (the ARIA combobox pattern).
 * @param {HTMLElement} box where it goes
 * @param {(person) => void} choose what happens with the person chosen
 * @returns {{show: (person) => void}}
 */
export function viewerPicker(box, choose) {
  const people = new Map();
  let total = Infinity;
  let loading = null;
  let shown = [];
  let active = -1;
  let current = null;
  let timer = 0;

  const label = el("span", { class: "picker-label" }, "Choose a viewer");
  const portrait = el("span", { class: "picker-face" });
  const button = el("button", { type: "button", class: "picker-button", "aria-haspopup": "dialog", "aria-expanded": "false" }, portrait, label, icon("down", "chevron"));
  const input = el("input", { type: "text", id: "picker-search", role: "combobox", "aria-expanded": "true", "aria-controls": "picker-list", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", placeholder: "Name or number" });
  const list = el("ul", { id: "picker-list", role: "listbox", "aria-label": "People" });
  const note = el("p", { class: "fine", role: "status" });
  const surprise = el("button", { type: "button", class: "quiet strong", on: { click: surpriseMe } }, "Surprise me");
  const panel = el("div", { class: "picker-panel", role: "dialog", "aria-label": "See the feed as", hidden: true },
    el("label", { for: "picker-search", class: "picker-title" }, "See the feed as"),
    el("div", { class: "picker-field" }, icon("search"), input),
    list, el("div", { class: "picker-foot" }, note, surprise));
  box.append(button, panel);

  async function load(search) {
    if (search) return add(await fetchPeople({ count: SHOWN, search })); // a server without search answers with its first people
    while (people.size < Math.min(total, MOST_LOADED)) {
      const before = people.size;
      const page = await fetchPeople({ count: PAGE, offset: before });
      add(page);
      total = page.total;
      if (people.size === before) break;
      if (!panel.hidden) draw();
    }
  }
  const add = (page) => page.people.forEach((person) => people.set(String(person.id), person));

  function draw() {
    const wanted = input.value.trim().toLowerCase();
    const fits = ({ name, id }) => !wanted || name.toLowerCase().includes(wanted) || String(id) === wanted;
    const all = [...people.values()].filter(fits);
    shown = all.slice(0, SHOWN);
    active = Math.min(Math.max(active, wanted && shown.length ? 0 : -1), shown.length - 1);
    list.replaceChildren(...shown.map((person, at) =>
      el("li", { role: "option", id: `picker-${at}`, "aria-selected": String(person.id === current?.id), on: { click: () => take(person), pointermove: () => highlight(at, false) } },
        face(person), el("span", { class: "picker-who" }, el("span", { class: "name" }, person.name), el("span", { class: "fine" }, facts(person))))));
    note.textContent = all.length > shown.length ? `${shown.length} of ${plural(Math.max(all.length, wanted ? 0 : total === Infinity ? 0 : total), "person").replace("persons", "people")}` : shown.length ? "" : "Nobody by that name.";
    highlight(active, false);
  }

  function highlight(at, scroll = true) {
    active = at;
    [...list.children].forEach((row, i) => row.classList.toggle("active", i === at));
    const row = list.children[at];
    if (row) input.setAttribute("aria-activedescendant", row.id);
    else input.removeAttribute("aria-activedescendant");
    if (scroll) row?.scrollIntoView({ block: "nearest" });
  }

  const outside = (event) => !box.contains(event.target) && close(false);
  function open() {
    panel.hidden = false;
    button.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside);
    input.value = "";
    active = -1;
    draw();
    input.focus();
    loading ??= load().then(draw).catch((error) => ((note.textContent = error.message), (loading = null)));
  }
  function close(giveBack) {
    panel.hidden = true;
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
    if (giveBack) button.focus();
  }
  function take(person) {
    close(true);
    choose(person);
  }
  async function surpriseMe() {
    try {
      const seed = crypto.getRandomValues(new Uint32Array(1))[0] % 1_000_000;
      const { people: drawn } = await fetchPeople({ count: 5, seed });
      take(drawn.find(({ id }) => id !== current?.id) ?? drawn[0]);
    } catch (error) {
      note.textContent = error.message;
    }
  }
  async function search() {
    const wanted = input.value.trim();
    draw();
    if (!wanted) return;
    try {
      if (/^\d+$/.test(wanted)) add({ people: [await fetchPerson(wanted)] });
      else await load(wanted);
    } catch {
      // Nobody of that number, or no search: the list says what is known.
    }
    if (input.value.trim() === wanted) draw();
  }

  button.addEventListener("click", () => (panel.hidden ? open() : close(true)));
  input.addEventListener("input", () => {
    active = -1;
    draw();
    clearTimeout(timer);
    timer = setTimeout(search, TYPING_MS);
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return close(true);
    if (event.target !== input) return;
    const last = shown.length - 1;
    if (event.key === "ArrowDown") highlight(active >= last ? 0 : active + 1);
    else if (event.key === "ArrowUp") highlight(active <= 0 ? last : active - 1);
    else if (event.key === "Enter" && shown[active]) take(shown[active]);
    else return;
    event.preventDefault();
  });
  panel.addEventListener("focusout", (event) => event.relatedTarget && !box.contains(event.relatedTarget) && close(false));

  return {
    show(person) {
      current = person;
      portrait.replaceChildren(face(person));
      label.replaceChildren(el("span", { class: "unseen" }, "Feed of "), person.name);
      button.title = `This is the feed of ${person.name}. Choose another viewer.`;
    },
  };
}

/** The viewer's own card beside the feed. */
export function viewerCard(box, person) {
  const about = el("p", { class: "fine" }, facts(person));
  box.replaceChildren(el("div", { class: "panel viewer-card" }, face(person, "face face-large"), el("p", { class: "eyebrow" }, "Feed of"), el("h2", {}, person.name), about),
    el("div", { class: "panel keys" }, el("h2", {}, "Keys"),
      el("dl", {}, [["j / k", "next, previous post"], ["l", "like"], ["c", "comment"], ["s", "share"], ["h", "hide"], ["o", "open"], ["e", "scores"]].map(([key, text]) =>
        el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)))),
      el("p", { class: "fine" }, "While a post has focus.")));
  if (person.friends === null) {
    fetchPerson(person.id).then((known) => (about.textContent = facts(known))).catch(() => {});
  }
}
