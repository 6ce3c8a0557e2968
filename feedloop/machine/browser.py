"""Finds a Chromium for the pages' tests and pictures."""

import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> Path | None:
    """The program of a Chromium on the PATH, None when there is none."""
    return next((Path(found) for name in NAMES if (found := shutil.which(name)) is not None), None)
