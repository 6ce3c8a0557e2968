"""What a viewer may be shown at a moment: visibility along the chain, blocks, deletion, and nothing from the future."""

import pytest

from contracts.clock import DAY, HOUR
from contracts.tables import BLOCKS
from recall.log import read_log
from recall.settings import SocialSettings
from recall.viewpoint import Viewpoints
from tests.recall.world import START, action_row, edge_rows, post_row, table, write

NOW = START + 5 * DAY
VIEWER, FRIEND, STRANGER, FOLLOWED = 1, 2, 3, 4


def visible(tmp_path, posts, blocks=(), actions=(), extra=None, at=NOW):
    rows = {
        "users": [{"user_id": u, "registered_at": START, "known_at": START} for u in range(1, 6)],
        "friendships": [*edge_rows([(VIEWER, FRIEND)]), *edge_rows([(VIEWER, FOLLOWED)])[:1]],
        "posts": [*posts, post_row(999, STRANGER, START)],
        "actions": [action_row(1, FRIEND, post_row(999, STRANGER, START), START + HOUR), *actions],
        **(extra or {}),
    }  # fmt: skip
    for row in rows["friendships"]:
        if row["friend_id"] == FOLLOWED:
            row["kind"] = "follow"
    workspace = write(tmp_path, rows)
    workspace.lake.write(BLOCKS, table(BLOCKS, list(blocks)))
    log = read_log(workspace.lake)
    return log.posts.post_id_N[Viewpoints(log, 4 * DAY).visible(VIEWER, at)].tolist()


@pytest.mark.parametrize(
    ("author", "visibility", "audience", "shown"),
    [
        (STRANGER, "public", None, True), (STRANGER, "friends", None, False), (STRANGER, "list", [VIEWER], False),
        (STRANGER, "private", None, False), (FRIEND, "friends", None, True), (FRIEND, "list", [VIEWER, 5], True),
        (FRIEND, "list", [5], False), (FRIEND, "private", None, False), (FOLLOWED, "friends", None, False),
        (VIEWER, "public", None, False),
    ],
)  # fmt: skip
def test_a_post_reaches_only_those_it_is_meant_for(tmp_path, author, visibility, audience, shown):
    post = post_row(7, author, NOW - HOUR, visibility=visibility, audience=audience)
    assert (7 in visible(tmp_path, [post])) == shown
    share = post_row(8, FRIEND, NOW - HOUR, kind="share", origin_post_id=7)
    deeper = post_row(9, FRIEND, NOW - HOUR, kind="share", origin_post_id=8)
    if author != VIEWER:
        found = visible(tmp_path / "shared", [post, share, deeper])
        assert (8 in found, 9 in found) == (shown, shown)


@pytest.mark.parametrize(
    ("by", "target", "kind", "shown"),
    [
        (VIEWER, STRANGER, "block", False), (STRANGER, VIEWER, "block", False), (VIEWER, STRANGER, "hide_their_posts", False),
        (STRANGER, VIEWER, "hide_their_posts", True), (STRANGER, VIEWER, "deny_my_posts", False),
        (VIEWER, STRANGER, "deny_my_posts", True),
    ],
)  # fmt: skip
def test_a_block_keeps_an_authors_posts_out_also_when_a_friend_shares_them(tmp_path, by, target, kind, shown):
    posts = [post_row(7, STRANGER, NOW - HOUR), post_row(8, FRIEND, NOW - HOUR, kind="share", origin_post_id=7)]
    block = {"user_id": by, "target_id": target, "kind": kind, "since": NOW - HOUR, "known_at": NOW - HOUR}
    found = visible(tmp_path, posts, [block])
    assert (7 in found, 8 in found) == (shown, shown)
    assert 7 in visible(tmp_path / "ended", posts, [{**block, "ended_at": NOW - 1}])


def test_deleted_late_seen_old_and_future_posts_are_out(tmp_path):
    posts = [
        post_row(10, STRANGER, NOW - HOUR, deleted_at=NOW - 1), post_row(11, STRANGER, NOW - HOUR, deleted_at=NOW + 1),
        post_row(12, STRANGER, NOW - HOUR, known_at=NOW), post_row(13, STRANGER, NOW - 5 * DAY), post_row(14, STRANGER, NOW + 1),
        post_row(15, STRANGER, NOW - HOUR), post_row(16, FRIEND, NOW - HOUR, origin_post_id=10),
    ]  # fmt: skip
    shown = {"request_id": 1, "user_id": VIEWER, "post_id": 15, "author_id": STRANGER, "position": 0, "shown_at": NOW - 9,
             "viewed_ms": 5, "policy": "x", "known_at": NOW - 9}  # fmt: skip
    assert visible(tmp_path, posts) == [11, 15]
    assert visible(tmp_path / "seen", posts, extra={"impressions": [shown]}) == [11]
    assert visible(tmp_path / "derived", posts, extra={"impressions": [{**shown, "policy": "derived:x"}]}) == [11, 15]


def test_ties_count_contacts_known_by_then_and_a_later_friend_is_none(tmp_path):
    post = post_row(7, FRIEND, START)
    late = action_row(3, VIEWER, post, NOW - HOUR, known_at=NOW + 1)
    rows = {"users": [], "posts": [post], "actions": [action_row(2, VIEWER, post, NOW - HOUR), late],
            "friendships": [*edge_rows([(VIEWER, FRIEND)]), *edge_rows([(VIEWER, 5)], since=NOW)]}  # fmt: skip
    views = Viewpoints(read_log(write(tmp_path, rows).lake), 4 * DAY)
    before, at_now, later = (views.ties(VIEWER, at, SocialSettings()) for at in (NOW - HOUR, NOW, NOW + 2))
    assert at_now.friend_id_F.tolist() == [FRIEND] and later.friend_id_F.tolist() == [FRIEND, 5]
    assert not before.contacted_F[0] and at_now.contacted_F[0]
    assert before.strength_F[0] == 1.0 < at_now.strength_F[0] < later.strength_F[0]
