// What a person can do with a post. Nothing looks done before the server has acknowledged it; a failure offers a retry.

import { el, uniqueId } from "./dom.js";
import { face } from "./face.js";
import { icon } from "./icons.js";
import { confirm, overflowMenu } from "./menu.js";
import { announce } from "./toast.js";
import { TIE, firstName, plural } from "./words.js";

function actionButton(kind, label, doneLabel) {
  const text = el("span", { class: "label" }, label);
  const button = el("button", { type: "button", class: `action action-${kind}`, "data-action": kind }, icon(kind), text);
  return {
    button,
    busy: (on) => {
      button.classList.toggle("busy", on);
      button.setAttribute("aria-busy", String(on));
    },
    done: () => {
      button.classList.add("done");
      button.setAttribute("aria-pressed", "true");
      button.setAttribute("aria-disabled", "true");
      text.textContent = doneLabel;
    },
  };
}

/** Runs `attempt` behind a button: busy while it is under way, done when acknowledged, never twice. */
function once({ button, busy, done }, attempt, after) {
  async function run() {
    if (button.getAttribute("aria-disabled") === "true" || button.classList.contains("busy")) return false;
    busy(true);
    try {
      await attempt(run);
      done();
      after?.();
      return true;
    } catch {
      return false; // The page has shown the sentence and the way to try again.
    } finally {
      busy(false);
    }
  }
  return run;
}

/** The row of buttons, the comment composer, the overflow menu and the person's panel of one card. */
export function cardActions(item, page, on, card, scoresId) {
  const author = item.author;
  const short = firstName(author.name);
  const like = actionButton("like", "Like", "Liked");
  const comment = actionButton("comment", "Comment", "Commented");
  const share = actionButton("share", "Share", "Shared");
  const hide = actionButton("hide", "Hide", "Hidden");
  const act = (kind, ...rest) => (retry) => on.act(kind, item, page, retry, ...rest);

  like.button.addEventListener("click", once(like, act("like"), () => announce(`You liked ${short}'s post.`)));
  share.button.addEventListener("click", once(share, act("share"), () => announce(`You shared ${short}'s post.`)));
  hide.button.addEventListener("click", once(hide, act("hide"), () => on.hidden(card, item)));

  const box = commentBox(item, page, once(comment, act("comment"), () => announce(`Your comment on ${short}'s post counted.`)));
  comment.button.setAttribute("aria-expanded", "false");
  comment.button.setAttribute("aria-controls", box.form.id);
  const showComposer = (show) => {
    box.form.hidden = !show;
    comment.button.setAttribute("aria-expanded", String(show));
    (show ? box.input : comment.button).focus();
  };
  comment.button.addEventListener("click", () => comment.button.getAttribute("aria-disabled") !== "true" && showComposer(box.form.hidden));
  box.onClose(() => showComposer(false));

  const scores = el("button", { type: "button", class: "action action-scores", "aria-expanded": "false", "aria-controls": scoresId, title: "What the models predicted" }, icon("scores"), el("span", { class: "label" }, "Scores"));
  scores.addEventListener("click", () => {
    const panel = document.getElementById(scoresId);
    panel.hidden = !panel.hidden;
    scores.setAttribute("aria-expanded", String(!panel.hidden));
  });

  async function block() {
    const sure = await confirm({
      title: `Block ${author.name}?`,
      text: "Neither of you will see the other's posts, shares of them included, from the next feed on.",
      yes: "Block",
    });
    if (sure) on.block(author);
  }

  const menu = overflowMenu(`More about ${author.name}'s post`, [
    { icon: "person", text: `About ${author.name}`, run: () => profile() },
    { icon: "refresh", text: `See the feed as ${short}`, run: () => on.visit(author) },
    { icon: "report", text: "Report this post", run: () => on.report(item, page) },
    { icon: "block", text: `Block ${author.name}…`, run: block, danger: true },
  ]);

  const person = el("div", { class: "person", hidden: true });
  let visited = false;
  function profile() {
    person.hidden = !person.hidden;
    if (person.hidden || person.childElementCount) return;
    const facts = [TIE[item.tie], author.city, author.friends !== null && plural(author.friends, "friend")].filter(Boolean).join(" · ");
    person.append(face(author, "face face-large"),
      el("div", {}, el("p", { class: "name" }, author.name), el("p", { class: "fine" }, facts)),
      el("button", { type: "button", class: "soft", on: { click: () => on.visit(author) } }, `See the feed as ${short}`));
    if (!visited) {
      visited = true;
      on.note("profile", item, page).catch(() => (visited = false));
    }
  }

  const row = el("div", { class: "actions", role: "group", "aria-label": `Actions on ${author.name}'s post` }, like.button, comment.button, share.button, hide.button, scores);
  return { row, composer: box.form, menu, person, profile };
}

function commentBox(item, page, send) {
  const id = uniqueId("comment");
  const input = el("textarea", { id: `${id}-text`, rows: "2", maxlength: "500", placeholder: `Say something to ${firstName(item.author.name)}…` });
  const submit = el("button", { type: "submit", class: "solid" }, "Send");
  const cancel = el("button", { type: "button", class: "quiet" }, "Cancel");
  const form = el("form", { class: "comment", id, hidden: true },
    face(page.viewer, "face face-small"),
    el("div", { class: "comment-field" },
      el("label", { class: "unseen", for: `${id}-text` }, `Comment as ${page.viewer.name}`), input,
      el("div", { class: "comment-foot" }, el("p", { class: "fine" }, "That you commented is kept, the words are not."), el("div", { class: "comment-buttons" }, cancel, submit))));
  let close = () => {};
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!input.value.trim()) return input.focus();
    submit.disabled = true;
    if (await send()) close();
    submit.disabled = false;
  });
  cancel.addEventListener("click", () => close());
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return { form, input, onClose: (listener) => (close = listener) };
}
