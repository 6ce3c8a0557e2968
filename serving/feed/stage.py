"""The kinds of stages that a feed pipeline is listed of; each is one small class with one method.

`reads` and `adds` name candidate columns: a pipeline checks on construction that every column read was added before.
Shapes: N candidates, K selected.
"""

from typing import Protocol

import numpy as np

from recall.posts import Ranked
from serving.feed.candidates import Candidates, Feed, Run


class QueryHydrator(Protocol):
    """Fills `run.viewer`. It has no fallback: without the viewer's blocks and friends nothing may be shown."""

    @property
    def name(self) -> str: ...

    def hydrate(self, run: Run) -> None: ...


class Source(Protocol):
    """Brings posts, best first. Late or broken: the other sources go on without it."""

    @property
    def name(self) -> str: ...

    def retrieve(self, run: Run) -> Ranked: ...


class Hydrator(Protocol):
    """Adds columns. Late or broken: `defaults` adds them."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[str, ...]: ...
    @property
    def adds(self) -> tuple[str, ...]: ...

    def hydrate(self, run: Run, candidates: Candidates) -> Candidates: ...

    def defaults(self, run: Run, candidates: Candidates) -> Candidates: ...


class Filter(Protocol):
    """Says who stays (N,). Broken: nobody does."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[str, ...]: ...

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray: ...


class Scorer(Protocol):
    """Adds columns that scores are made of, and may cut the candidates. Late or broken: `fallback`."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[str, ...]: ...
    @property
    def adds(self) -> tuple[str, ...]: ...

    def score(self, run: Run, candidates: Candidates) -> Candidates: ...

    def fallback(self, run: Run, candidates: Candidates) -> Candidates: ...


class Selector(Protocol):
    """Picks and orders: row indices (K,) and whether each fills an exploration slot (K,)."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[str, ...]: ...

    def select(self, run: Run, candidates: Candidates, size: int) -> tuple[np.ndarray, np.ndarray]: ...


class Overtaken(Exception):
    """Another feed of the same viewer was shown since this one's viewer was read: it has to be selected again."""


class SideEffect(Protocol):
    """Something done with a finished feed; the first may say `Overtaken`, having done nothing."""

    @property
    def name(self) -> str: ...

    def run(self, run: Run, feed: Feed) -> None: ...
