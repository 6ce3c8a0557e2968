"""Takes the README's picture of a served feed: `python scripts/feed_picture.py http://127.0.0.1:8080/?user=1002`."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from feedloop.machine import browser

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "feed.png"


def main() -> None:
    """One page of 1280 x 900 CSS pixels, once its posts are there."""
    found = browser.find()
    if found is None:
        raise SystemExit("no chromium on the PATH: make browser")
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=str(found), args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1)
        page.goto(sys.argv[1])
        page.wait_for_selector("article")
        page.wait_for_timeout(1500)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(PICTURE))
        chromium.close()


if __name__ == "__main__":
    main()
