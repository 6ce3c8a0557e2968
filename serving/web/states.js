// What the stream shows when it shows no posts: loading, nothing left, something wrong, part of the pipeline missing.

import { el, svg } from "./dom.js";
import { icon } from "./icons.js";
import { capital, firstName } from "./words.js";

const button = (text, run, style = "soft") => el("button", { type: "button", class: style, on: { click: run } }, text);

/** Grey shapes of `count` cards to come. */
export const skeletons = (count) =>
  Array.from({ length: count }, () =>
    el("div", { class: "card skeleton", "aria-hidden": "true" },
      el("div", { class: "card-head" }, el("span", { class: "bone bone-face" }), el("div", { class: "who" }, el("span", { class: "bone bone-name" }), el("span", { class: "bone bone-meta" }))),
      el("span", { class: "bone" }), el("span", { class: "bone bone-short" })));

const picture = (...shapes) => svg("svg", { viewBox: "0 0 160 96", class: "picture", "aria-hidden": "true", focusable: "false" }, shapes);
const stroke = (d, className) => svg("path", { d, class: className });

/** Nothing (more) to show to `viewer`; `whole`: no stage of the pipeline was missing or late. */
export function emptyState(viewer, whole, { refresh, choose }) {
  return el("div", { class: "state" },
    picture(stroke("M80 50c-12-18-21-26-34-26a26 26 0 0 0 0 52c26 0 42-52 68-52a26 26 0 0 1 0 52c-13 0-22-8-34-26z", "loop"),
      svg("circle", { cx: 38, cy: 48, r: 2.6, class: "ink" }), svg("circle", { cx: 54, cy: 48, r: 2.6, class: "ink" }), stroke("M40 57c4 4 8 4 12 0", "smile"),
      stroke("M104 48q3 3 6 0M118 48q3 3 6 0M109 57q5 3 10 0", "smile")),
    el("h2", {}, whole ? `All caught up, ${firstName(viewer.name)}` : "No posts this time"),
    el("p", {}, whole
      ? "Every post that may be shown to this viewer has been shown. Shown posts do not return; new ones will come."
      : "A part of the pipeline was missing or late and the rest found nothing. Looking again may help."),
    el("div", { class: "state-buttons" }, button("Look again", refresh, "solid"), button("Choose another viewer", choose)));
}

/** The server's own sentence, and a way on. */
export function errorState(sentence, { retry, choose }) {
  return el("div", { class: "state", role: "alert" },
    picture(stroke("M80 50c-12-18-21-26-34-26a26 26 0 0 0 0 52c14 0 25-14 34-28", "loop"), stroke("M92 36c7-8 14-12 22-12a26 26 0 0 1 0 52c-9 0-16-4-23-11", "loop broken"),
      stroke("M82 30l-5-9M88 27l2-10M77 68l-6 8M84 72l-1 10", "smile")),
    el("h2", {}, "The feed could not be loaded"),
    el("p", { class: "sentence" }, sentence),
    el("div", { class: "state-buttons" }, button("Try again", retry, "solid"), choose && button("Choose another viewer", choose)));
}

/** Says which stages of the pipeline fell back; null when all ran. */
export function degradedBanner(stages) {
  if (!stages.length) return null;
  return el("div", { class: "banner", role: "status" }, icon("alert"),
    el("div", {}, el("p", {}, el("strong", {}, "This feed is a simpler one. "), "A part of the pipeline was missing or late; the rest made the feed."),
      el("ul", {}, stages.map((stage) => el("li", {}, capital(stage))))));
}
