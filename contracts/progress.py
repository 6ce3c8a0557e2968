"""Stage lines on stderr, so that long work shows where it is."""

import contextlib
import sys
import time
from collections.abc import Iterator


def say(message: str) -> None:
    """One line on stderr."""
    print(message, file=sys.stderr, flush=True)


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Announces `name`, then says how long it took."""
    say(f"… {name}")
    begun = time.perf_counter()
    yield
    say(f"✓ {name} ({time.perf_counter() - begun:.1f} s)")
