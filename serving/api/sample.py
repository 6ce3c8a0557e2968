"""One feed from the published version without a server and without a trace: for summaries and for a look by hand."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from contracts.workspace import Workspace
from serving.api.deployment import deploy
from serving.api.presenting import feed_response, friend_counts
from serving.feed.candidates import Query
from serving.feed.timing import Inline
from serving.settings import ApiSettings, FeedSettings
from serving.store.redis import connect, version_in_force


def sample_feed(workspace: Workspace, redis_url: str, user_id: int | None = None, size: int = 8) -> dict[str, Any]:
    """`FeedResponse` as a dict for `user_id`, by default the person with most friends. Nothing counts as shown.

    `StoreDown` when nothing is published.
    """
    client = connect(redis_url, timeout_s=30.0)
    with ThreadPoolExecutor(1) as executor:
        deployment = deploy(workspace, client, version_in_force(client), executor, ApiSettings(), FeedSettings())
        if user_id is None:
            people = [one.user_id for one in deployment.people]
            _, user_id = max(zip(friend_counts(deployment, people), people), default=(0, 0))
        policy = replace(deployment.policies["full"], side_effects=[], runner=Inline())
        feed = policy.run(Query(user_id, deployment.now, size), deployment.store)
        return feed_response(deployment, feed, round(sum(feed.took_ms.values()), 3))
