"""What the ranker predicts, and what the product says each action is worth."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A binary label: 1 when an action of `kind` follows the impression inside the attribution window.

    `worth` is the reward of one such action in the product's own unit (a click is 1). It defines the value by which
    replay judges policies; the value model's own weights start from it and are tuned on logged traffic.
    """

    name: str
    kind: str
    worth: float


TASKS = (
    Task("click", "click", 1.0),
    Task("like", "like", 2.0),
    Task("comment", "comment", 4.0),
    Task("share", "share", 4.0),
    Task("hide", "hide", -8.0),
)
TASK_NAMES = tuple(task.name for task in TASKS)
ENGAGEMENTS = ("like", "comment", "share")
"""Public acts that a person's friends can see ("3 friends liked this")."""

CONTACTS = ("click", "like", "comment", "share", "profile")
"""Acts of one person towards another that count as contact between them."""
