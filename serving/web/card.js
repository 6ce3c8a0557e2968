// One post of the feed as a card: who, why it is here, the text, what one can do, and what the models thought.

import { el, uniqueId } from "./dom.js";
import { face } from "./face.js";
import { icon } from "./icons.js";
import { cardActions } from "./actions.js";
import { scoresPanel } from "./scores.js";
import { KIND, TIE, VISIBILITY, capital, firstName, hue, longAge, moment, plural, shortAge } from "./words.js";

/** A topic as a tag with its own colour. */
export function topicTag(topic) {
  const tag = el("span", { class: "topic" }, topic.name);
  tag.style.setProperty("--hue", hue(topic.id));
  return tag;
}

const visibilityMark = (visibility) =>
  el("span", { class: "mark-with-name", title: VISIBILITY[visibility] ?? visibility }, icon(visibility), el("span", { class: "unseen" }, `Visible to: ${VISIBILITY[visibility] ?? visibility}`));

const tieHint = (tie) => tie !== "friend" && el("span", { class: `tie tie-${tie}` }, icon(tie), TIE[tie]);

const kindMark = (kind) => KIND[kind] && el("span", { class: "kind" }, icon(kind), KIND[kind]);

const subjectMark = (subject) => subject && el("p", { class: "subject" }, icon("link"), el("span", {}, subject.name), el("span", { class: "fine" }, subject.kind));

function whyLine(item) {
  const [first, ...others] = item.reasons;
  const faces = item.engagedFriends.slice(0, 3).map((friend) => face(friend, "face face-mini"));
  const text = first ? first.text : item.explored ? "something new to you" : PATHLESS;
  return el("p", { class: "why" },
    faces.length ? el("span", { class: "face-stack" }, faces) : icon(item.explored ? "explore" : "why"),
    el("span", { class: "why-text" }, el("span", { class: "unseen" }, "Why this is here: "), capital(text)),
    others.length > 0 && el("span", { class: "why-more" }, others.map(({ text: more }) => el("span", {}, more))));
}
const PATHLESS = "from the people around you";

/** The post that a share or a quote is of, and the one that is of, to the chain's end. */
function originalPost(post) {
  return el("blockquote", { class: "original" },
    el("header", { class: "original-head" },
      face(post.author, "face face-small"),
      el("span", { class: "name" }, post.author.name),
      el("span", { class: "meta" },
        el("time", { datetime: post.createdAt, title: moment(post.createdAt) }, shortAge(post.ageSeconds)),
        visibilityMark(post.visibility), kindMark(post.kind))),
    post.text && el("p", { class: "text" }, post.text),
    subjectMark(post.subject),
    post.original && originalPost(post.original));
}

const verb = (item) => ({ share: "shared a post", quote: "quoted a post" })[item.kind];

function engagementLine({ likes, comments, shares }) {
  const parts = [likes && plural(likes, "like"), comments && plural(comments, "comment"), shares && plural(shares, "share")].filter(Boolean);
  return parts.length === 0 ? "" : el("p", { class: "engagement" }, parts.join(" · "));
}

/**
 * The card of one item.
 * @param item as made by api.js
 * @param page the feed it came in: `{viewer, requestId, policy, statistics}`
 * @param {{act: Function, note: Function, hidden: Function, block: Function, visit: Function, report: Function}} on what the page does about it
 */
export function postCard(item, page, on) {
  const nameId = uniqueId("name");
  const textId = uniqueId("text");
  const scoresId = uniqueId("scores");
  const card = el("article", { class: "card", tabindex: "0", "aria-labelledby": nameId, "aria-describedby": textId, "data-post": item.id, "data-author": item.author.id });
  const actions = cardActions(item, page, on, card, scoresId);
  const age = el("button", { type: "button", class: "age", "aria-expanded": "false", "aria-label": `${longAge(item.ageSeconds)}, open this post` }, shortAge(item.ageSeconds));
  const exact = el("p", { class: "exact fine", hidden: true }, `${moment(item.createdAt)} · ${VISIBILITY[item.visibility] ?? item.visibility} · post ${item.id}`);
  const body = el("div", { class: "body", id: textId },
    item.text && el("p", { class: "text" }, item.text),
    subjectMark(item.subject),
    item.original && originalPost(item.original),
    el("p", { class: "read-more", "aria-hidden": "true" }, "Read more"));

  let opened = false;
  function open() {
    const show = exact.hidden;
    exact.hidden = !show;
    card.classList.toggle("open", show);
    age.setAttribute("aria-expanded", String(show));
    if (!opened) {
      opened = true;
      on.note("click", item, page).catch(() => (opened = false));
    }
  }
  age.addEventListener("click", open);
  // Opening by a click on the text is for the pointer; the age button is the same for the keyboard.
  body.addEventListener("click", () => String(window.getSelection()) === "" && open());

  const name = el("button", { type: "button", class: "name", id: nameId, title: `About ${item.author.name}`, on: { click: () => actions.profile() } }, item.author.name);
  card.append(
    whyLine(item),
    el("header", { class: "card-head" },
      face(item.author),
      el("div", { class: "who" },
        el("p", { class: "who-line" }, name, verb(item) && el("span", { class: "verb" }, verb(item)), tieHint(item.tie)),
        el("p", { class: "meta" }, age, visibilityMark(item.visibility), kindMark(item.kind), item.topic && topicTag(item.topic))),
      actions.menu),
    actions.person,
    body, exact,
    engagementLine(item.engagement),
    actions.row,
    actions.composer,
    scoresPanel(item, page, page.statistics, scoresId));
  return card;
}

/** Marks a card in the document whose text is cut, so that it says that there is more to read. */
export function markCut(card) {
  card.classList.toggle("cut", [...card.querySelectorAll(".text")].some((text) => text.scrollHeight > text.clientHeight + 4));
}

/** What takes a card's place once it is hidden or its author blocked; it cannot be taken back here, and says so. */
export function goneNote(text, detail) {
  return el("div", { class: "gone", tabindex: "-1", role: "group" }, icon("check"), el("p", {}, el("strong", {}, text), el("span", {}, detail)));
}

export const hiddenText = (author) => ["Hidden.", ` This post of ${firstName(author.name)}'s will not come back.`];
export const blockedText = (author) => [`${author.name} is blocked.`, " Neither of you will see the other's posts."];
