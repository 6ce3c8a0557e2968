"""Why a post is in a feed, from the inputs that it was ranked with and the paths that brought it; strongest first.

Shapes: K shown posts.
"""

from collections.abc import Callable, Sequence

from serving.features.hydrate import active_friends
from serving.feed.candidates import PATHS, Feed, feature
from serving.store.packing import FRIEND_CODE

CLOSE_CONTACTS = 4.0
"""Decayed contacts (180 days) from which a friend counts as close."""
NEW_FRIEND_DAYS = 14.0


def ties(feed: Feed) -> list[str]:
    """What each author (K) is to the viewer: close_friend, new_friend, friend, follow or none."""
    inputs = feed.inputs_KF
    active_RW = active_friends(feed.viewer.friends_RW, feed.query.now)
    friends = set(active_RW[active_RW[:, 1] != FRIEND_CODE["follow"], 0].tolist())
    followed = set(active_RW[:, 0].tolist()) - friends
    rows = zip(
        feed.shown["author_id"].tolist(), feature(inputs, "tie_contacts_180d"), feature(inputs, "friendship_days")
    )
    found = []
    for author, contacts, days in rows:
        if author not in friends:
            found.append("follow" if author in followed else "none")
        elif contacts >= CLOSE_CONTACTS:
            found.append("close_friend")
        else:
            found.append("new_friend" if days <= NEW_FRIEND_DAYS else "friend")
    return found


def reasons(feed: Feed, row: int, tie: str, engaged_names: Sequence[str], author: str, about: str,
            topic: str) -> list[tuple[str, str]]:  # fmt: skip
    """(code, words) for the post in `row`. `tie` as of `ties`; `engaged_names`: friends who acted on it; `about`: its subject, or ""."""
    inputs = feed.inputs_KF[row : row + 1]

    def value(name: str) -> float:
        return float(feature(inputs, name)[0])

    brought = {path for path, there in zip(PATHS, feed.shown["brought_NP"][row]) if there}
    first = author.split(" ")[0] if author else "they"
    candidates: list[tuple[bool, str, Callable[[], str]]] = [
        (bool(engaged_names), "friend_engaged", lambda: f"{_some(engaged_names)} reacted to this"),
        (value("special_care") > 0, "special_care", lambda: f"you keep {first} close"),
        (tie == "close_friend", "close_friend", lambda: f"you and {first} are often in touch"),
        (tie == "new_friend", "new_friend", lambda: f"{first} is a new friend"),
        (tie == "friend", "friend", lambda: f"{first} is a friend"),
        ("collaborative" in brought and bool(about), "because_you_read", lambda: f"people with your taste like {about}"),
        ("collaborative" in brought and not about and tie == "none", "because_you_read",
         lambda: f"people with your taste read {first}"),
        (value("taste_engaged_180d") >= 1, "your_topic", lambda: f"you like posts about {topic}"),
        ("popular" in brought and value("same_city") > 0, "popular_near_you", lambda: "popular near you"),
        ("popular" in brought, "popular", lambda: "popular now"),
        (bool(feed.shown["explored"][row]), "explore", lambda: "something new, to find out whether you like it"),
        ("vector" in brought, "because_you_read", lambda: "close to what you read before"),
    ]  # fmt: skip
    found: dict[str, str] = {}
    for holds, code, words in candidates:
        if holds and code not in found:
            found[code] = words()
    return list(found.items()) or [("explore", "something new, to find out whether you like it")]


def _some(names: Sequence[str]) -> str:
    first = names[0]
    others = len(names) - 1
    if not others:
        return first
    return f"{first} and {names[1]}" if others == 1 else f"{first} and {others} other friends"
