// Numbers, moments and codes in words for people.

const UNITS = [["year", 365 * 86400], ["month", 30 * 86400], ["week", 7 * 86400], ["day", 86400], ["hour", 3600], ["minute", 60]];
const SHORT = { year: "y", month: "mo", week: "w", day: "d", hour: "h", minute: "min" };

/** "3 h", or "now" below a minute. */
export function shortAge(seconds) {
  const [unit, size] = UNITS.find(([, length]) => seconds >= length) ?? [];
  return unit ? `${Math.floor(seconds / size)} ${SHORT[unit]}` : "now";
}

/** "3 hours ago". */
export function longAge(seconds) {
  const [unit, size] = UNITS.find(([, length]) => seconds >= length) ?? [];
  if (!unit) return "just now";
  const count = Math.floor(seconds / size);
  return `${plural(count, unit)} ago`;
}

export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** "4 Jun 2024, 13:05 UTC": the log's own clock, whatever the reader's. */
export function moment(iso) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return iso;
  const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });
  const hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
  return `${day.format(at)}, ${hour.format(at)} UTC`;
}

/** "12 %", "4.3 %", "0.07 %": two digits that say something. */
export function percent(share) {
  const value = share * 100;
  return `${value >= 10 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(1) : value.toFixed(2)} %`;
}

export const VISIBILITY = { public: "Public", friends: "Friends", list: "A list of people", private: "Only the author" };
export const TIE = { close: "Close friend", new: "New friend", friend: "Friend", follow: "Followed", none: "Not a friend" };
export const KIND = { photo: "Photo", video: "Video", link: "Link" };
export const PATH = { social: "friends", collaborative: "people like you", popular: "popular", vector: "similar taste", pool: "logged pool" };

export const firstName = (name) => name.split(" ")[0];

/** A sentence out of a part of one. */
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A hue in degrees for a topic, so that one topic has one colour everywhere. */
export const hue = (id) => Math.round((Number(id) * 137.508 + 20) % 360);
