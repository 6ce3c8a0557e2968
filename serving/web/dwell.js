// Notices which posts are really read, and says so in batches: once per shown post, in seconds.

import { actionEvent, send, sendOnLeaving } from "./api.js";

const LEAST_SECONDS = 2; // below this a card was scrolled past, not read
const MOST_SECONDS = 300; // above this the person has left the screen
const SHARE_VISIBLE = 0.5;
const BATCH = 50;
const FLUSH_MS = 5000;

const watched = new Map(); // card -> {item, page, visible, since, seconds}
const waiting = [];
let sending = false;

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, intersectionRatio, intersectionRect, rootBounds } of entries) {
      // A card taller than the window counts when it fills half of the window.
      const fills = rootBounds ? intersectionRect.height / rootBounds.height : 0;
      mark(target, intersectionRatio >= SHARE_VISIBLE || fills >= SHARE_VISIBLE);
    }
  },
  { threshold: [0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 1] },
);

function mark(card, visible) {
  const state = watched.get(card);
  if (!state) return;
  state.visible = visible;
  const now = performance.now();
  if (visible && state.since === null && document.visibilityState === "visible") state.since = now;
  if (!visible && state.since !== null) settle(card, state, now);
}

function settle(card, state, now) {
  state.seconds += (now - state.since) / 1000;
  state.since = null;
  if (state.seconds < LEAST_SECONDS) return;
  const value = Math.round(Math.min(state.seconds, MOST_SECONDS) * 10) / 10;
  waiting.push(actionEvent("dwell", { userId: state.page.viewer.id, postId: state.item.id, requestId: state.page.requestId, value }));
  unwatch(card);
}

function unwatch(card) {
  watched.delete(card);
  observer.unobserve(card);
}

/** Starts to watch a card. */
export function watch(card, item, page) {
  watched.set(card, { item, page, visible: false, since: null, seconds: 0 });
  observer.observe(card);
}

/** Ends the watch over all cards inside `root` and queues what was read. */
export function settleAll(root = document) {
  const now = performance.now();
  for (const [card, state] of [...watched]) {
    if (!root.contains(card)) continue;
    if (state.since !== null) settle(card, state, now);
    if (root !== document) unwatch(card);
  }
}

/** Sends `batch`; resolves to what is to be sent again. One refused event refuses its batch: each is then sent alone,
 * and what is refused (its post was deleted, its author blocked) is given up. */
async function deliver(batch) {
  try {
    await send(batch);
    return [];
  } catch ({ status }) {
    if (!(status >= 400 && status < 500)) return batch;
    const left = [];
    if (batch.length > 1) for (const event of batch) left.push(...(await deliver([event])));
    return left;
  }
}

/** Sends what waits; events that fail to arrive wait for the next time, under the same ids. */
export async function flush() {
  if (sending || !waiting.length) return;
  sending = true;
  const batch = waiting.splice(0, BATCH);
  waiting.unshift(...(await deliver(batch)));
  sending = false;
}

setInterval(flush, FLUSH_MS);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState !== "hidden") {
    for (const [card, { visible }] of watched) mark(card, visible);
    return;
  }
  settleAll();
  while (waiting.length) {
    const batch = waiting.splice(0, BATCH);
    if (!sendOnLeaving(batch)) {
      waiting.unshift(...batch);
      break;
    }
  }
});
