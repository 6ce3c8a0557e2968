// For engineers: what the models predicted for one post, next to the rest of its page.

import { el } from "./dom.js";
import { PATH, percent } from "./words.js";

const ORDER = ["click", "like", "comment", "share", "dwell", "hide"];
const rank = (task) => (ORDER.indexOf(task) + 1 || ORDER.length + 1);

/** Per action, the mean and the highest chance over the posts of one page. */
export function pageStatistics(items) {
  const statistics = {};
  for (const { probabilities } of items) {
    for (const [task, chance] of Object.entries(probabilities)) {
      const known = (statistics[task] ??= { sum: 0, count: 0, highest: 0 });
      known.sum += chance;
      known.count += 1;
      known.highest = Math.max(known.highest, chance);
    }
  }
  return statistics;
}

function bar(task, chance, { sum, count, highest }) {
  const mean = sum / count;
  const filled = el("span", { class: "bar-fill" });
  const tick = el("span", { class: "bar-tick" });
  // Through the style object, which a strict content security policy allows; a style attribute it does not.
  filled.style.setProperty("inline-size", `${highest ? (100 * chance) / highest : 0}%`);
  tick.style.setProperty("inset-inline-start", `${highest ? (100 * mean) / highest : 0}%`);
  return [
    el("dt", {}, task),
    el("dd", { class: task === "hide" ? "against" : "" },
      el("span", { class: "bar-track", "aria-hidden": "true" }, filled, tick),
      el("span", { class: "bar-number" }, percent(chance)),
      el("span", { class: "unseen" }, `, mean of this page ${percent(mean)}`)),
  ];
}

const fact = (name, value) => value !== undefined && value !== null && value !== "" && el("div", {}, el("dt", {}, name), el("dd", {}, String(value)));

/** The panel for one item; `statistics` is `pageStatistics` of its page. */
export function scoresPanel(item, page, statistics, id) {
  const tasks = Object.keys(item.probabilities).sort((a, b) => rank(a) - rank(b));
  return el("div", { class: "scores", id, hidden: true },
    tasks.length
      ? [el("dl", { class: "bars" }, tasks.map((task) => bar(task, item.probabilities[task], statistics[task]))),
        el("p", { class: "fine" }, "Chance of each action. Full bar: the highest on this page; tick: the page's mean.")]
      : el("p", { class: "fine" }, `The policy “${page.policy}” ordered this page without action probabilities.`),
    el("dl", { class: "facts" },
      fact("score", Number.isFinite(item.score) ? Number(item.score.toPrecision(4)) : null),
      fact("place", item.position + 1),
      fact("recalled by", item.paths.map((path) => PATH[path] ?? path).join(", ")),
      fact("exploration slot", item.explored ? "yes" : null),
      fact("post", item.id),
      fact("request", page.requestId)));
}
