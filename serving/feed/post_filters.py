"""The last look before a feed leaves: blocks, deletions and visibility once more, from the live state.

Shapes: K selected posts.
"""

import numpy as np

from serving.feed.candidates import Candidates, Run
from serving.feed.filters import Visible
from serving.feed.hydrators import Documents
from serving.feed.query_hydrators import ViewerHydrator


class StillVisible:
    """Reads the viewer's blocks and the selected posts anew, for what changed while the feed was made."""

    name = "still_visible"
    reads = ("post_id",)

    def __init__(self) -> None:
        self._viewer, self._documents, self._visible = ViewerHydrator(), Documents(), Visible()

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray:
        if not len(candidates):
            return np.zeros(0, bool)
        now = Run(run.query, run.store, viewer=run.viewer)
        self._viewer.hydrate(now)
        return self._visible.keep(now, self._documents.hydrate(now, candidates))
