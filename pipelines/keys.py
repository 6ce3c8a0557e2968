"""What tells two rows of a table apart: a key that is there twice is a fault of the log."""

KEYS = {
    "users": ("user_id", "known_at"), "friendships": ("user_id", "friend_id", "kind", "since"),
    "blocks": ("user_id", "target_id", "kind", "since"), "posts": ("post_id", "known_at"), "topics": ("topic",),
    "subjects": ("subject_id",), "requests": ("request_id",), "impressions": ("request_id", "post_id"), "actions": ("action_id",),
    "sessions": ("user_id", "started_at"),
}  # fmt: skip
"""Table -> columns. A row of users or posts that became known later is a further version, no repetition."""
