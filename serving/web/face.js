// A friendly face for every person, drawn from one seed alone: the same person has the same face everywhere.

import { svg } from "./dom.js";

const BACKGROUNDS = ["#f6d9c4", "#f4e3b2", "#d7e8c5", "#c3e4dc", "#c5dcf0", "#d6d3f0", "#ecd0e4", "#f3cfd0", "#dfd8cb", "#cfe0e6"];
const SKINS = [
  ["#fbe0cf", "#eec3a9"], ["#f4cfb2", "#e0ae8b"], ["#e8b88f", "#d0996c"], ["#d79f71", "#bd8153"],
  ["#bd8254", "#a0683d"], ["#9a6540", "#7d4e2e"], ["#77492d", "#5d3720"], ["#573522", "#412515"],
];
const HAIRS = ["#1f1a1c", "#2e211c", "#4a2f22", "#6b4226", "#8f5a2e", "#b98445", "#d9b36c", "#a9482b", "#8d8a88", "#c9c5c0"];
const CLOTHES = ["#2f6f62", "#c8593b", "#345b8c", "#d39b2a", "#7a4b7d", "#4d5a63", "#a83f56", "#5f8a3a", "#e7e0d2", "#2c3440"];
const INK = "#2b2022";

/** Draws numbers in [0, 1) from a text: xmur3 feeding mulberry32. */
function generator(text) {
  let hash = 1779033703 ^ text.length;
  for (let i = 0; i < text.length; i++) {
    hash = Math.imul(hash ^ text.charCodeAt(i), 3432918353);
    hash = (hash << 13) | (hash >>> 19);
  }
  return () => {
    hash = (hash + 0x6d2b79f5) | 0;
    let t = Math.imul(hash ^ (hash >>> 15), 1 | hash);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const path = (d, fill, more = {}) => svg("path", { d, fill, ...more });
const line = (d, stroke, width, more = {}) =>
  svg("path", { d, fill: "none", stroke, "stroke-width": width, "stroke-linecap": "round", "stroke-linejoin": "round", ...more });
const dot = (cx, cy, r, fill, more = {}) => svg("circle", { cx, cy, r, fill, ...more });
const oval = (cx, cy, rx, ry, fill, more = {}) => svg("ellipse", { cx, cy, rx, ry, fill, ...more });

const SWEPT = "M18.5 29c-1.5-11 5-16.5 13.5-16.5S47 18 45.5 29c-1.6-6.4-6.2-9.8-13.5-9.8S20.1 22.6 18.5 29z";
const PARTED = "M32 13.5c-8 0-13.6 5.5-13.5 15.5 5.5-2 11-6 13.5-12 2.5 6 8 10 13.5 12 .1-10-5.5-15.5-13.5-15.5z";
const FRINGE = "M18.6 28c-.6-10 5.4-15.5 13.4-15.5S46 18 45.4 28c-1.4-2.2-3-4-4-4.6-6 1.2-13 1.2-18.8 0-1 .6-2.6 2.4-4 4.6z";

// Each style: what lies behind the head, and what lies on it. `h` hair, `c` a cloth colour.
const STYLES = [
  { front: (h) => [path("M18.5 28.5c-2-10.5 4.5-17 13.5-17s15.5 6.5 13.5 17c-1.5-4-3-6.6-5.6-8.3-4.9 1.5-10.9 1.6-15.4.4-2.8 1.6-4.5 4-6 7.9z", h)] },
  { front: (h) => [path("M18.4 29c-2.5-12 5-17.5 13-17.5 9.5 0 16 6 14.2 17.5-1-4-2.2-6.8-4.3-8.8-6 .1-11.3-1.1-15.5-4-1 4.2-4.6 6.8-7.4 12.8z", h)] },
  { front: (h) => [path(FRINGE, h)] },
  { back: (h) => [path("M15.5 45V28c0-10.5 7-16.5 16.5-16.5S48.5 17.5 48.5 28v17c-5 2.6-28 2.6-33 0z", h)], front: (h) => [path(FRINGE, h)] },
  { back: (h) => [path("M14.5 55c-1-8 .5-16 .5-27 0-11 8-17 17-17s17 6 17 17c0 11 1.5 19 .5 27-6 3-29 3-35 0z", h)], front: (h) => [path(PARTED, h)] },
  { back: (h) => [dot(32, 9.5, 6.5, h)], front: (h) => [path(SWEPT, h)] },
  { back: (h) => [dot(32, 23, 19.5, h), dot(16, 32, 6, h), dot(48, 32, 6, h)], front: (h) => [path("M19 26c1-6.5 6-9.5 13-9.5S44 19.5 45 26c1.5-9-3.5-14-13-14s-14.5 5-13 14z", h)] },
  {
    back: (h) => [[17, 24], [16, 31], [18, 38], [47, 24], [48, 31], [46, 38]].map(([x, y]) => dot(x, y, 5, h)),
    front: (h) => [[20, 21], [24, 16.5], [29.5, 14.2], [35, 14.2], [40, 16.5], [44, 21]].map(([x, y]) => dot(x, y, 4.8, h)),
  },
  { back: (h) => [path("M43 16c9 1 11 10 8.5 19-1 4-4 6-5.5 5 2-8 1-16-3-24z", h)], front: (h) => [path(SWEPT, h)] },
  { front: () => [] },
  {
    back: (h, c) => [path("M13.5 58c-1.5-13 .5-26 2.5-33.5C18.5 15 24.5 10.5 32 10.5S45.5 15 48 24.5C50 32 52 45 50.5 58c-8 3-29 3-37 0z", c)],
    front: (h, c) => [path("M32 10.5c-9 0-16.5 7-16.5 20S22 49 32 49s16.5-5.5 16.5-18.5-7.5-20-16.5-20zm0 7.5c6.8 0 11 5 11 13s-4.6 14-11 14-11-6-11-14 4.2-13 11-13z", c, { "fill-rule": "evenodd" }), line("M21 45c3 4 7 5.5 11 5.5", "#00000026", 1.2)],
    hat: true,
  },
  {
    front: (h, c) => [path("M18.8 29c0-2 .2-4 .8-6h24.8c.6 2 .8 4 .8 6-1-1.5-1.5-3-2-4h-22.4c-.5 1-1 2.5-2 4z", h), path("M17.5 23C17.5 13.5 23.5 9 32 9s14.5 4.5 14.5 14z", c), svg("rect", { x: 16.5, y: 20, width: 31, height: 5.5, rx: 2.7, fill: c }), svg("rect", { x: 16.5, y: 20, width: 31, height: 5.5, rx: 2.7, fill: "#ffffff2e" }), dot(32, 8.5, 2.6, c)],
    hat: true,
  },
  { back: (h) => [oval(15.5, 41, 4.2, 9, h), oval(48.5, 41, 4.2, 9, h), dot(17, 31, 3.4, h), dot(47, 31, 3.4, h)], front: (h) => [path(PARTED, h)] },
  { back: (h) => [path("M16 40c-2-4-1.5-9-.5-14C17 16 24 11 32 11s15 5 16.5 15c1 5 1.5 10-.5 14-1.5 3-5 3.5-7 2H23c-2 1.5-5.5 1-7-2z", h)], front: (h) => [path("M18.5 29c-1.5-10 4.5-16.5 13.5-16.5S47 19 45.5 29c-5-1-10-3.5-13-8.5-2.5 4.5-8 7.5-14 8.5z", h)] },
  { front: (h) => [path("M18.8 27c0-4 .8-6.5 2.2-8.5l1-6 4.5 2L29 9l4 4 4.5-4 1.5 5 4.5-1 .5 6c1 2 1.4 4.5 1.4 8-1.6-3.5-3.4-5.5-5.4-6.5-5 1-11 1-16 0-2 1-3.8 3-5.2 6.5z", h)] },
];

const MOUTHS = [
  () => [line("M26.5 38c1.6 2.6 3.4 3.6 5.5 3.6s3.9-1 5.5-3.6", INK, 1.7)],
  () => [path("M25.8 37.2h12.4c-.5 4-3 6-6.2 6s-5.7-2-6.2-6z", "#7c2f35"), path("M27 37.2h10l-.5 2h-9z", "#fff")],
  () => [line("M27.5 38.8c3 1.7 6 1.6 9-.6", INK, 1.7)],
  () => [line("M28 38.5c1 1.5 2.3 2.2 4 2.2s3-.7 4-2.2", INK, 1.7), line("M26.8 37.6l.9 1M37.2 37.6l-.9 1", INK, 1.2)],
  () => [path("M27 37.5c3.3 1 6.7 1 10 0-.6 3.5-2.6 5-5 5s-4.4-1.5-5-5z", "#7c2f35"), oval(32, 41.2, 2.2, 1.1, "#d9737a")],
];
const EYES = [
  () => [dot(26.5, 30, 1.9, INK), dot(37.5, 30, 1.9, INK), dot(27.2, 29.3, 0.6, "#fff"), dot(38.2, 29.3, 0.6, "#fff")],
  () => [oval(26.5, 30, 1.6, 2.3, INK), oval(37.5, 30, 1.6, 2.3, INK), dot(27, 29, 0.6, "#fff"), dot(38, 29, 0.6, "#fff")],
  () => [line("M24.3 30.6c.9-1.7 3.5-1.7 4.4 0M35.3 30.6c.9-1.7 3.5-1.7 4.4 0", INK, 1.7)],
  () => [oval(26.5, 30, 2.8, 2.3, "#fff"), oval(37.5, 30, 2.8, 2.3, "#fff"), dot(26.7, 30.1, 1.6, INK), dot(37.7, 30.1, 1.6, INK)],
];
const BROWS = [
  "M23.8 25.8c1.5-1.3 3.5-1.5 5.2-.7M35 25.1c1.7-.8 3.7-.6 5.2.7",
  "M24 25.5h4.7M35.3 25.5H40",
  "M24 26c1.2-1.8 3.6-2.3 5-1.2M35 24.8c1.4-1.1 3.8-.6 5 1.2",
];
const NOSES = ["M32 31.5c-.6 1.6-1.3 2.8-.2 3.3.5.2 1 .1 1.4-.2", "M30.7 34.3c.8.7 1.8.7 2.6 0", "M32.4 31c.9 1.5 1.6 3-.9 3.4"];
const HEADS = [
  (skin) => oval(32, 30, 13, 15, skin),
  (skin) => oval(32, 30.5, 13.8, 14.5, skin),
  (skin) => path("M19 26c0-7 5-11.5 13-11.5S45 19 45 26v6c0 8-6 13.5-13 13.5S19 40 19 32z", skin),
];
const NECKLINES = [
  () => [],
  (skin) => [path("M25.5 48.5L32 56l6.5-7.5z", skin)],
  () => [path("M25 48l7 6.5-4 4.5-7-8.5zM39 48l-7 6.5 4 4.5 7-8.5z", "#ffffff66")],
  () => [line("M23.5 50c3 4.5 14 4.5 17 0", "#ffffff59", 2)],
];

function glasses(kind, tone) {
  if (kind === 0) {
    return [svg("circle", { cx: 26.5, cy: 30.2, r: 4.8, fill: "#ffffff30", stroke: tone, "stroke-width": 1.3 }),
      svg("circle", { cx: 37.5, cy: 30.2, r: 4.8, fill: "#ffffff30", stroke: tone, "stroke-width": 1.3 }),
      line("M31.3 29.6c.5-.4 1-.4 1.4 0M21.7 29.5l-2.5-1M42.3 29.5l2.5-1", tone, 1.3)];
  }
  const lens = (x) => svg("rect", { x, y: 26.6, width: 9.2, height: 7, rx: 2.2, fill: "#ffffff30", stroke: tone, "stroke-width": 1.4 });
  return [lens(21.9), lens(32.9), line("M31.1 29.3h1.8M21.9 29l-2.6-.8M42.1 29l2.6-.8", tone, 1.4)];
}

/**
 * The face of a person as an `<svg>`. It is decoration beside the name, so assistive technology skips it.
 * @param {{seed: string}} person
 */
export function face(person, className = "face") {
  const draw = generator(person.seed);
  const pick = (list) => list[Math.floor(draw() * list.length)];
  const background = pick(BACKGROUNDS);
  const [skin, shade] = pick(SKINS);
  const hair = pick(HAIRS);
  const cloth = pick(CLOTHES);
  const scarf = pick(CLOTHES);
  const style = pick(STYLES);
  const head = pick(HEADS)(skin);
  const dark = SKINS.findIndex(([tone]) => tone === skin) > 4;
  const parts = [
    svg("rect", { width: 64, height: 64, fill: background }),
    ...(style.back ? style.back(hair, scarf) : []),
    path("M27 40h10v8c0 3-2 5-5 5s-5-2-5-5z", shade),
    path("M7 66c1-12 9-17.5 19-18.5 2 3.5 10 3.5 12 0 10 1 18 6.5 19 18.5z", cloth),
    ...pick(NECKLINES)(shade),
    oval(18.9, 31.5, 2.4, 3.2, skin), oval(45.1, 31.5, 2.4, 3.2, skin),
    head,
    ...(draw() < 0.55 ? [oval(23.3, 35.6, 2.6, 1.7, "#e0555022"), oval(40.7, 35.6, 2.6, 1.7, "#e0555022")] : []),
    ...(draw() < 0.14 ? [[22.5, 34], [24.5, 35.2], [26, 33.7], [38, 33.7], [39.5, 35.2], [41.5, 34]].map(([x, y]) => dot(x, y, 0.5, shade)) : []),
    line(pick(NOSES), shade, 1.5),
    ...pick(MOUTHS)(),
    ...pick(EYES)(),
    line(pick(BROWS), dark ? "#20140f" : hair === "#d9b36c" || hair === "#c9c5c0" ? "#8a6a4a" : hair, 1.4),
    ...style.front(hair, scarf),
  ];
  const extra = draw();
  if (extra < 0.3) parts.push(...glasses(Math.floor(draw() * 2), pick(["#2b2022", "#7a3f2a", "#2f4f6f"])));
  if (!style.hat && draw() < 0.22) parts.push(dot(18.7, 36, 1.3, "#e3b23c"), dot(45.3, 36, 1.3, "#e3b23c"));
  return svg("svg", { viewBox: "0 0 64 64", class: className, "aria-hidden": "true", focusable: "false" }, ...parts);
}
