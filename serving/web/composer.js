// Writes a new post as the viewer; once acknowledged it is shown at the top, since one's own feed leaves one's own posts out.

import { fetchTopics, postEvent, send } from "./api.js";
import { topicTag } from "./card.js";
import { el } from "./dom.js";
import { face } from "./face.js";
import { icon } from "./icons.js";
import { fail, tell } from "./toast.js";
import { VISIBILITY, firstName } from "./words.js";

const MOST_CHARACTERS = 2000;
const topics = new Map();
let listed = null;

/** Adds topics that feeds mention, for servers that list none. */
export function learnTopics(items) {
  for (const { topic } of items) if (topic) topics.set(String(topic.id), topic);
}

/** Draws the composer for `viewer` into `box`; a post made is shown in `mine`. */
export function composer(box, mine, viewer) {
  mine.replaceChildren();
  const text = el("textarea", { id: "compose-text", rows: "1", maxlength: MOST_CHARACTERS, placeholder: `What is new, ${firstName(viewer.name)}?` });
  const topic = el("select", { id: "compose-topic" });
  const visibility = el("select", { id: "compose-visibility" }, ["friends", "public", "private"].map((value) => el("option", { value }, VISIBILITY[value])));
  const submit = el("button", { type: "submit", class: "solid", disabled: true }, "Post");
  const foot = el("div", { class: "compose-foot", hidden: true },
    el("label", {}, el("span", { class: "unseen" }, "Topic"), topic),
    el("label", {}, el("span", { class: "unseen" }, "Who sees it"), visibility), submit);
  const form = el("form", { class: "panel compose" }, face(viewer), el("div", { class: "compose-field" },
    el("label", { class: "unseen", for: "compose-text" }, `New post as ${viewer.name}`), text, foot));
  box.replaceChildren(form);

  const fillTopics = () => {
    const chosen = topic.value;
    const sorted = [...topics.values()].sort((a, b) => a.name.localeCompare(b.name));
    topic.replaceChildren(...sorted.map(({ id, name }) => el("option", { value: id }, name)));
    if (topics.has(chosen)) topic.value = chosen;
  };
  async function unfold() {
    foot.hidden = false;
    listed ??= fetchTopics().then((all) => all.forEach((one) => topics.set(String(one.id), one)));
    await listed;
    fillTopics();
  }
  text.addEventListener("focus", unfold, { once: true });
  text.addEventListener("input", () => {
    submit.disabled = !text.value.trim();
    text.style.blockSize = "auto";
    text.style.blockSize = `${text.scrollHeight}px`;
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  let event = null; // kept until acknowledged, so that a retry cannot post twice
  async function publish() {
    if (!text.value.trim() || submit.classList.contains("busy")) return;
    const wanted = { userId: viewer.id, text: text.value.trim(), topic: topic.value, visibility: visibility.value };
    const same = event && event.text === wanted.text && String(event.topic) === String(wanted.topic) && event.visibility === wanted.visibility;
    event = same ? event : postEvent(wanted);
    submit.classList.add("busy");
    try {
      await send([event]);
      event = null;
      mine.prepend(ownPost(viewer, wanted));
      text.value = "";
      text.style.blockSize = "auto";
      submit.disabled = true;
      tell(wanted.visibility === "private" ? "Posted. Only you can see it." : "Posted. It can now appear in other people's feeds.");
    } catch (error) {
      fail(error.message, publish);
    } finally {
      submit.classList.remove("busy");
    }
  }
  form.addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    publish();
  });
}

const ownPost = (viewer, post) =>
  el("section", { class: "card own", "aria-label": "Your new post" },
    el("p", { class: "why" }, icon("check"), el("span", { class: "why-text" }, "You posted this just now")),
    el("header", { class: "card-head" }, face(viewer),
      el("div", { class: "who" }, el("p", { class: "who-line" }, el("span", { class: "name" }, viewer.name)),
        el("p", { class: "meta" }, "now", icon(post.visibility), VISIBILITY[post.visibility], topics.has(post.topic) && topicTag(topics.get(post.topic))))),
    el("p", { class: "text" }, post.text));
