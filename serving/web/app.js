// The page: whose feed, which posts, what happens on a click. Draws what api.js fetched with what card.js builds.

import { CallFailed, actionEvent, blockEvent, fetchFeed, fetchPeople, fetchPerson, send } from "./api.js";
import { blockedText, goneNote, hiddenText, markCut, postCard } from "./card.js";
import { composer, learnTopics } from "./composer.js";
import { el } from "./dom.js";
import { flush, settleAll, watch } from "./dwell.js";
import { feedFacts } from "./facts.js";
import { icon } from "./icons.js";
import { pageStatistics } from "./scores.js";
import { degradedBanner, emptyState, errorState, skeletons } from "./states.js";
import { announce, fail, tell } from "./toast.js";
import { viewerCard, viewerPicker } from "./viewer.js";
import { firstName, plural } from "./words.js";

const parts = Object.fromEntries(["composer", "mine", "banner", "feed", "after", "facts", "viewer", "refresh", "title"].map((id) => [id, document.getElementById(id)]));
const address = new URL(location.href);
const perPage = Math.min(50, Math.max(1, Number(address.searchParams.get("n")) || 10));
const state = { viewer: null, items: [], ask: null };
const pending = new Map(); // "kind:post" -> the event not yet acknowledged, so that a retry counts once

const picker = viewerPicker(document.getElementById("picker"), visit);
const choose = () => document.querySelector(".picker-button").click();
parts.refresh.append(icon("refresh"), el("span", { class: "label" }, "Refresh"));
parts.refresh.addEventListener("click", () => refresh());

/** Sends the event of `kind` on a post; reuses the unacknowledged one. Rejects when it was not acknowledged. */
async function note(kind, item, page) {
  const key = `${kind}:${item.id}:${page.requestId}`;
  const event = pending.get(key) ?? actionEvent(kind, { userId: page.viewer.id, postId: item.id, requestId: page.requestId });
  pending.set(key, event);
  await send([event]);
  pending.delete(key);
}

const on = {
  note,
  async act(kind, item, page, retry) {
    try {
      await note(kind, item, page);
    } catch (error) {
      fail(error.message, retry);
      throw error;
    }
  },
  hidden(card, item) {
    replaceCard(card, hiddenText(item.author));
  },
  async block(author, event = blockEvent({ userId: state.viewer.id, targetId: author.id })) {
    try {
      await send([event]);
    } catch (error) {
      return fail(error.message, () => on.block(author, event));
    }
    const gone = state.items.filter(({ item }) => authorsOf(item).includes(String(author.id)) && document.contains(item.card));
    gone.forEach(({ item }, at) => (at ? item.card.remove() : replaceCard(item.card, blockedText(author))));
  },
  async report(item, page) {
    try {
      await on.act("report", item, page, () => on.report(item, page));
      tell("Reported. Thank you.");
    } catch {
      // The failure is on the page already, with its retry.
    }
  },
  visit,
};

/** Everyone along the chain of originals: blocking any of them takes the card away. */
const authorsOf = (post) => (post ? [String(post.author.id), ...authorsOf(post.original)] : []);

function replaceCard(card, [text, detail]) {
  settleAll(card);
  const hadFocus = card.contains(document.activeElement) || document.activeElement === document.body;
  const gone = goneNote(text, detail);
  card.replaceWith(gone);
  if (hadFocus) gone.focus();
  announce(text + detail);
}

async function load({ more = false } = {}) {
  state.ask?.abort();
  const ask = (state.ask = new AbortController());
  const viewer = state.viewer;
  settleAll(parts.feed);
  await flush();
  parts.feed.setAttribute("aria-busy", "true");
  parts.refresh.classList.add("busy");
  parts.after.replaceChildren();
  if (!more) {
    parts.banner.replaceChildren();
    parts.feed.replaceChildren(...skeletons(3));
    state.items = [];
  } else {
    parts.after.append(...skeletons(1));
  }
  try {
    const page = await fetchFeed(viewer.id, perPage, ask.signal);
    if (ask === state.ask) show(page, more);
  } catch (error) {
    if (error.name === "AbortError") return;
    showFailure(error, more);
  } finally {
    if (ask === state.ask) {
      parts.feed.setAttribute("aria-busy", "false");
      parts.refresh.classList.remove("busy");
    }
  }
}

function show(page, more) {
  page.statistics = pageStatistics(page.items);
  learnTopics(page.items);
  const cards = page.items.map((item) => Object.assign(item, { card: postCard(item, page, on) }).card);
  state.items.push(...page.items.map((item) => ({ item, page })));
  if (!more) parts.feed.replaceChildren();
  parts.feed.append(...cards);
  [...parts.feed.querySelectorAll("article")].forEach((card, at) => {
    card.setAttribute("aria-posinset", at + 1);
    card.setAttribute("aria-setsize", -1);
  });
  cards.forEach(markCut);
  page.items.forEach((item) => watch(item.card, item, page));
  const banner = degradedBanner(page.degraded);
  parts.banner.replaceChildren(...(banner ? [banner] : []));
  feedFacts(parts.facts, page, state.items.map(({ item }) => item));
  const ends = { refresh: () => refresh(), choose };
  // A page that a late stage left short says nothing about what there is to show.
  const whole = !page.degraded.length;
  if (!page.items.length || (page.exhausted && whole)) parts.after.replaceChildren(emptyState(page.viewer, whole, ends));
  else parts.after.replaceChildren(el("button", { type: "button", class: "soft more", id: "more", on: { click: loadMore } }, "More"));
  if (more) cards[0]?.focus({ preventScroll: true });
  announce(cards.length ? `${plural(cards.length, more ? "more post" : "post")} for ${page.viewer.name}.` : `No new post for ${page.viewer.name}.`);
}

const loadMore = () => load({ more: true });

function showFailure(error, more) {
  if (!(error instanceof CallFailed)) console.error(error); // a fault of this page, not of the server
  const again = more ? loadMore : () => load();
  parts.after.replaceChildren(errorState(error.message, { retry: again, choose }));
  if (!more) parts.feed.replaceChildren();
}

function refresh() {
  window.scrollTo({ top: 0 });
  parts.mine.replaceChildren();
  return state.viewer ? load() : start();
}

function visit(person) {
  state.viewer = person;
  address.searchParams.set("user", person.id);
  history.replaceState(null, "", address);
  document.title = `${firstName(person.name)}'s feed · feedloop`;
  parts.title.textContent = `Friend feed of ${person.name}`;
  picker.show(person);
  viewerCard(parts.viewer, person);
  composer(parts.composer, parts.mine, person);
  window.scrollTo({ top: 0 });
  return load();
}

async function start() {
  parts.feed.replaceChildren(...skeletons(3));
  parts.after.replaceChildren();
  try {
    const asked = address.searchParams.get("user");
    const person = asked ? await fetchPerson(asked) : (await fetchPeople({ count: 1 })).people[0];
    if (!person) throw new Error("There is nobody in the published snapshot yet.");
    await visit(person);
  } catch (error) {
    parts.feed.replaceChildren();
    parts.feed.setAttribute("aria-busy", "false");
    parts.after.replaceChildren(errorState(error.message, { retry: start, choose }));
  }
}

const KEYS = { l: "like", c: "comment", s: "share", h: "hide" };
parts.feed.addEventListener("keydown", (event) => {
  const card = event.target.closest("article, .gone");
  if (!card || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const step = { j: 1, PageDown: 1, k: -1, PageUp: -1 }[event.key];
  if (step) {
    const cards = [...parts.feed.querySelectorAll("article, .gone")];
    const next = cards[cards.indexOf(card) + step] ?? (step > 0 ? document.getElementById("more") : null);
    next?.focus();
  } else if (event.target !== card || !card.matches("article")) return;
  else if (KEYS[event.key]) card.querySelector(`[data-action=${KEYS[event.key]}]`).click();
  else if (event.key === "o") card.querySelector(".age").click();
  else if (event.key === "e") card.querySelector(".action-scores").click();
  else return;
  event.preventDefault();
});

start();
