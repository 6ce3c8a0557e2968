// The one place that knows the server's addresses and field names; the rest of the page sees the shapes made here.

const TIE_OF_REASON = { close_friend: "close", special_care: "close", new_friend: "new", friend: "friend" };
const TIE = { close_friend: "close", special_care: "close", new_friend: "new", friend: "friend", follow: "follow", none: "none" };

/** A failed call; `message` is the server's own sentence where it gave one. */
export class CallFailed extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
const LONG_INTEGER = /^-?\d{16,}$/;

/** JSON whose integers of 16 digits and more become strings: ids have 64 bits, numbers here have 53. */
export function parseJson(text) {
  return JSON.parse(text.replace(TOKENS, (token) => (LONG_INTEGER.test(token) ? `"${token}"` : token)));
}

async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallFailed("The server does not answer. Is it still running?");
  }
  const text = await answer.text();
  let body = null;
  try {
    body = text ? parseJson(text) : null;
  } catch {
    body = null;
  }
  if (answer.ok && body === null) throw new CallFailed("The server's answer is not JSON.", answer.status);
  if (!answer.ok) throw new CallFailed(body?.error ?? `The server answered with status ${answer.status}.`, answer.status);
  return { status: answer.status, body };
}

const query = (values) =>
  new URLSearchParams(Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "")).toString();

const person = (raw) => ({
  id: raw.user_id,
  name: raw.name,
  seed: raw.avatar_seed ?? `${raw.user_id}:${raw.name}`,
  city: raw.city ?? null,
  friends: raw.friends ?? null,
});

const post = (raw) => ({
  id: raw.post_id,
  author: person(raw.author),
  kind: raw.kind,
  text: raw.text ?? "",
  topic: raw.topic ? { id: raw.topic.topic, name: raw.topic.name } : null,
  subject: raw.subject ? { name: raw.subject.name, kind: raw.subject.kind } : null,
  visibility: raw.visibility,
  createdAt: raw.created_at,
  ageSeconds: raw.age_s,
  original: raw.original ? post(raw.original) : null,
});

const item = (raw) => ({
  ...post(raw),
  position: raw.position,
  score: raw.score,
  probabilities: raw.probabilities ?? {},
  paths: raw.paths ?? [],
  reasons: (raw.reasons ?? []).map(({ code, text }) => ({ code, text })),
  tie: TIE[raw.tie] ?? (raw.reasons ?? []).map(({ code }) => TIE_OF_REASON[code]).find(Boolean) ?? "none",
  engagement: raw.engagement ?? { likes: 0, comments: 0, shares: 0 },
  engagedFriends: (raw.friends_engaged ?? []).map(person),
  explored: Boolean(raw.explored),
});

/** One page of the feed of `userId`: `{requestId, viewer, items, degraded, exhausted, …}`. */
export async function fetchFeed(userId, count, signal) {
  const { body } = await call(`/v1/feed?${query({ user_id: userId, n: count })}`, { signal });
  return {
    requestId: body.request_id,
    viewer: person(body.viewer),
    servedAt: body.served_at,
    policy: body.policy,
    versions: body.versions ?? {},
    degraded: body.degraded ?? [],
    items: body.items.map(item),
    exhausted: Boolean(body.exhausted),
    tookMs: body.took_ms,
  };
}

/** People who can be a viewer: `{people, total}`. */
export async function fetchPeople({ count = 50, offset = 0, search, seed } = {}, signal) {
  const { body } = await call(`/v1/users?${query({ n: count, offset, q: search, seed })}`, { signal });
  return { people: body.users.map(person), total: body.total };
}

export async function fetchPerson(userId, signal) {
  return person((await call(`/v1/users/${encodeURIComponent(userId)}`, { signal })).body);
}

/** The topics a post can have, or [] where the server does not list them. */
export async function fetchTopics() {
  try {
    return (await call("/v1/topics")).body.topics.map(({ topic, name }) => ({ id: topic, name }));
  } catch {
    return [];
  }
}

const newEventId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** An action such as like or dwell, to hand to `send`. */
export const actionEvent = (kind, { userId, postId, requestId, value }) => ({
  event_id: newEventId(), kind, user_id: userId, post_id: postId, request_id: requestId, value,
});

export const blockEvent = ({ userId, targetId }) => ({
  event_id: newEventId(), kind: "block", user_id: userId, target_id: targetId, block_kind: "block",
});

export const postEvent = ({ userId, text, topic, visibility }) => ({
  event_id: newEventId(), kind: "post", user_id: userId, text, topic: Number(topic), visibility,
});

/** Sends events and returns once the server has said that they are durable; sending the same events again counts once. */
export async function send(events) {
  const { status, body } = await call("/v1/events", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ events }),
    keepalive: true,
  });
  if (status !== 202) throw new CallFailed(`The server answered with status ${status} where 202 was expected.`, status);
  return body;
}

/** Sends events while the page goes away; true when the browser took them. */
export function sendOnLeaving(events) {
  return navigator.sendBeacon("/v1/events", new Blob([JSON.stringify({ events })], { type: "application/json" }));
}
