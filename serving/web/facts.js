// The panel about this feed: which policy and models made it, how fast, and why its posts are here.

import { el } from "./dom.js";
import { PATH, moment, percent } from "./words.js";

const row = (name, value) => el("div", {}, el("dt", {}, name), el("dd", { title: String(value) }, String(value)));

/** Draws the panel for the pages shown so far, the last one's answer being `page`. */
export function feedFacts(box, page, items) {
  const counts = new Map();
  for (const { paths } of items) for (const path of paths) counts.set(path, (counts.get(path) ?? 0) + 1);
  const shares = [...counts].sort((a, b) => b[1] - a[1]).map(([path, count]) => {
    const filled = el("span", { class: "bar-fill" });
    filled.style.setProperty("inline-size", `${(100 * count) / items.length}%`);
    return [el("dt", {}, PATH[path] ?? path), el("dd", {}, el("span", { class: "bar-track", "aria-hidden": "true" }, filled), el("span", { class: "bar-number" }, percent(count / items.length)))];
  });
  const versions = Object.entries(page.versions).map(([name, version]) => row(name.replaceAll("_", " "), String(version).slice(0, 12)));
  box.replaceChildren(
    el("details", { class: "panel facts-panel", open: box.querySelector("details")?.open ?? matchMedia("(min-width: 50rem)").matches },
      el("summary", {}, el("h2", {}, "About this feed")),
      el("dl", { class: "facts" }, row("policy", page.policy), row("made in", `${page.tookMs.toFixed(1)} ms`), row("served at", moment(page.servedAt)), row("request", page.requestId)),
      shares.length > 0 && [el("h3", {}, "Recalled by"), el("dl", { class: "bars" }, shares), el("p", { class: "fine" }, "A post can come by several paths.")],
      versions.length > 0 && [el("h3", {}, "Versions"), el("dl", { class: "facts" }, versions)]));
}
