"""What is kept of a feed: the posts count as shown, and the feed log gets all that the next training turn needs."""

import numpy as np

from contracts.features import FEATURE_NAMES, FEATURE_VERSION
from contracts.served import FeedRecord
from serving.changes import seen_mutation
from serving.feed.candidates import Feed, Run
from serving.feed.stage import Overtaken
from serving.store.families import SEEN, key
from serving.store.packing import pack, reader
from serving.store.redis import FEED_LOG, PREFIXES, ROOT, RedisStore, answering, packed
from serving.store.scripts import SHOW

decode_record = reader(FeedRecord)


class Served:
    """Adds the slate to the viewer's seen posts and to the feed log, by one script.

    It ends before the answer leaves, so that the next page, or the same after a restart, cannot show a post again; and it
    is `Overtaken` by a feed that was shown meanwhile, so that of two asked for at once each shows posts of its own.
    """

    name = "served"

    def __init__(self, versions: dict[str, str], live_us: int, log_entries: int):
        self.versions, self.live_us, self.log_entries = versions, live_us, log_entries

    def run(self, run: Run, feed: Feed) -> None:
        if not len(feed):
            return
        store, query = run.store, feed.query
        assert isinstance(store, RedisStore)
        mutations = [
            seen_mutation(query.user_id, post_id, query.now, self.live_us, "served")
            for post_id in feed.post_id_K.tolist()
        ]
        served = run.viewer.served
        with answering():
            shown = store.client.register_script(SHOW)(
                keys=[store.place(key("served", query.user_id)), FEED_LOG],
                args=[ROOT, store.version, PREFIXES, packed(mutations), len(served), served[-8 * SEEN.width :],
                      pack(self._record(feed)), self.log_entries],
            )  # fmt: skip
        if not shown:
            raise Overtaken

    def _record(self, feed: Feed) -> FeedRecord:
        raw_KF = np.ascontiguousarray(feed.inputs_KF[:, : len(FEATURE_NAMES)], "<f8")
        return FeedRecord(
            feed.query.request_id, feed.query.user_id, feed.query.now, feed.policy, self.versions, FEATURE_VERSION,
            feed.post_id_K.tolist(), feed.shown["author_id"].tolist(), feed.propensity_K.tolist(), feed.score_K.tolist(),
            raw_KF.tobytes(), feed.considered_N.tolist(), list(feed.degraded),
        )  # fmt: skip
