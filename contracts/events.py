"""The event stream: what feeds the counters, in one vocabulary for the nightly batch and the online updater.

Columns: `kind`, `user_id` (who acts), `author_id`, `post_id`, `topic`, `occurred_at`, `known_at`. Kinds: the kinds of
`actions` as they stand; `view`, from an impression with `viewed_ms > 0` (occurred_at = shown_at, known_at = the
impression's); `post`, from a post (user_id = author_id, occurred_at = created_at). The stream is ordered by known_at.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EVENT_SCHEMA = pa.schema(
    [("kind", pa.string()), ("user_id", pa.int64()), ("author_id", pa.int64()), ("post_id", pa.int64()),
     ("topic", pa.int32()), ("occurred_at", pa.int64()), ("known_at", pa.int64())]
)  # fmt: skip


def event_stream(posts: pa.Table, impressions: pa.Table, actions: pa.Table) -> pa.Table:
    """The stream of `EVENT_SCHEMA`, ordered by (known_at, occurred_at, user_id, post_id, kind).

    A row about a post that `posts` lacks is left out: nobody can say its topic. An edited post is a second row with a
    later `known_at`; its first row is the one that was written and gives the event and the topic.
    """
    posts = _first_versions(posts)
    viewed = impressions.filter(pc.greater(impressions["viewed_ms"], 0))
    parts = [
        pa.table({
            "kind": pa.array(["view"] * viewed.num_rows, pa.string()), "user_id": viewed["user_id"],
            "author_id": viewed["author_id"], "post_id": viewed["post_id"],
            "occurred_at": viewed["shown_at"], "known_at": viewed["known_at"],
        }),
        pa.table({name: actions[name] for name in ("kind", "user_id", "author_id", "post_id", "occurred_at", "known_at")}),
        pa.table({
            "kind": pa.array(["post"] * posts.num_rows, pa.string()), "user_id": posts["author_id"],
            "author_id": posts["author_id"], "post_id": posts["post_id"],
            "occurred_at": posts["created_at"], "known_at": posts["known_at"],
        }),
    ]  # fmt: skip
    events = pa.concat_tables(parts)
    post_ids = posts["post_id"].to_numpy()
    wanted = events["post_id"].to_numpy()
    at = np.minimum(np.searchsorted(post_ids, wanted), max(len(post_ids) - 1, 0))
    found = post_ids[at] == wanted if len(post_ids) else np.zeros(len(wanted), bool)
    topics = posts["topic"].to_numpy()[at[found]] if len(post_ids) else np.zeros(0, np.int32)
    events = events.filter(pa.array(found)).append_column("topic", pa.array(topics, pa.int32()))
    keys = [(name, "ascending") for name in ("known_at", "occurred_at", "user_id", "post_id", "kind")]
    return events.select(EVENT_SCHEMA.names).sort_by(keys).cast(EVENT_SCHEMA)


def _first_versions(posts: pa.Table) -> pa.Table:
    """The first known row of each post, ordered by post_id."""
    post_ids, known_at, created_at = (posts[name].to_numpy() for name in ("post_id", "known_at", "created_at"))
    order = np.lexsort((created_at, known_at, post_ids))
    first = np.ones(len(order), bool)
    first[1:] = post_ids[order][1:] != post_ids[order][:-1]
    return posts.take(pa.array(order[first]))
