"""What is known of the viewer before any candidate is: friends, blocks, seen and hidden posts, in one round trip."""

import numpy as np

from serving.feed.candidates import Run, Viewer
from serving.store.families import BLOCK, FRIEND, SEEN, key
from serving.store.packing import unpack_profile, unpack_records

_FAMILIES = ("user", "friends", "friends_of", "blocks", "seen", "served", "hidden")


class ViewerHydrator:
    """Reads all of the viewer's own keys."""

    name = "viewer"

    def hydrate(self, run: Run) -> None:
        user_id = run.query.user_id
        values = dict(zip(_FAMILIES, run.store.get_many([key(family, user_id) for family in _FAMILIES])))
        blocks_RW = None
        try:
            if values["blocks"] is not None:
                blocks_RW = unpack_records(values["blocks"], BLOCK)
        except ValueError:
            pass
        if blocks_RW is None:
            run.degraded.append("blocks unknown: nothing shown")
        run.viewer = Viewer(
            profile=unpack_profile(values["user"]) if values["user"] else None,
            friends_RW=unpack_records(values["friends"], FRIEND),
            friends_of_RW=unpack_records(values["friends_of"], FRIEND),
            blocks_RW=blocks_RW,
            seen_M=np.unique(np.r_[tuple(unpack_records(values[name], SEEN)[:, 0] for name in ("seen", "served"))]),
            hidden_M=np.unique(unpack_records(values["hidden"], SEEN)[:, 0]),
            served=values["served"] or b"",
        )
