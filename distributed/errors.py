"""What can go wrong on the platform, each with one sentence for the person who started it."""


class LayoutError(ValueError):
    """A parallel layout that cannot be, or cannot be yet."""


class RankFailed(RuntimeError):
    """A rank raised, or its process died; the message names the rank and why, and all other ranks were stopped."""


class RankRefused(RankFailed):
    """What stopped the rank is for the user to mend: a layout that cannot be, or a file that the machine refuses."""
