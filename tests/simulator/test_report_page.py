"""The report in a real browser: legible at the width of a phone, complete, and with the warning on its first page."""

import json

import pytest

from simulator.replay.estimates import NAMES
from simulator.report.document import render_page
from simulator.report.words import ESTIMATOR_WORDS, GLOSSARY
from tests.simulator.test_replay_long_term import Log, population

LEGIBLE_PX = 11.0
MEASURE = """() => {
  const box = (e) => e.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  const texts = [...document.querySelectorAll('svg text')].map((t) => {
    const s = t.closest('svg'), drawn = box(s).width / s.viewBox.baseVal.width;
    return {text: t.textContent, px: parseFloat(getComputedStyle(t).fontSize) * drawn, left: box(t).left, right: box(t).right};
  });
  const boxes = [...document.querySelectorAll('.scroll')].map((s) => ({right: box(s).right, inner: s.scrollWidth - s.clientWidth,
    own: getComputedStyle(s).overflowX}));
  return {page: document.documentElement.scrollWidth, wide, texts, boxes,
          small: [...document.querySelectorAll('small, .note')].map((e) => parseFloat(getComputedStyle(e).fontSize)),
          overlaps: [...document.querySelectorAll('svg')].flatMap((s) => {
            const t = [...s.querySelectorAll('text')].map((e) => [e.textContent, box(e)]);
            return t.flatMap(([a, p], i) => t.slice(i + 1).filter(([, q]) =>
              p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3).map(([b]) => [a, b]));
          }),
          alarm: document.querySelector('.alarm')?.getBoundingClientRect().bottom};
}"""


@pytest.fixture(scope="module")
def planted(judged, tmp_path_factory) -> dict:
    """The report of the judged log, as if its people had been given three policies, one of which buys clicks."""
    report = json.loads((judged.reports / "replay.json").read_text())
    log = Log()
    population(log, "chronological", 1_000, clicks=0.3, hides=0.03, gap_days=3.0, seed=1)
    population(log, "bait", 5_000, clicks=0.5, hides=0.10, gap_days=4.5, seed=2)
    population(log, "prerank", 9_000, clicks=0.4, hides=0.03, gap_days=2.9, seed=3)
    report["long_term"] = log.judged(tmp_path_factory.mktemp("arms"))
    report["warnings"] = [*report["warnings"], *report["long_term"]["marks"]]
    return report


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1200])
def test_every_word_and_picture_fits_and_is_legible(planted, tmp_path, chromium, width):
    from playwright.sync_api import sync_playwright

    page_file = tmp_path / "replay.html"
    page_file.write_text(render_page(planted), encoding="utf-8")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(chromium), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": 844})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_file.as_uri())
        seen = page.evaluate(MEASURE)
        browser.close()
    assert asked == [page_file.as_uri()]
    assert seen["page"] <= seen["wide"] == width  # nothing sticks out of the page; wide tables scroll in their own box
    assert all(box["right"] <= width and box["own"] == "auto" for box in seen["boxes"])
    assert min(text["px"] for text in seen["texts"]) >= LEGIBLE_PX
    assert min(seen["small"]) >= LEGIBLE_PX
    assert [text["text"] for text in seen["texts"] if text["left"] < 0 or text["right"] > width] == []
    assert seen["overlaps"] == []
    assert seen["alarm"] <= 844  # what is bought with clicks stands on the first screen


def test_the_first_page_names_the_policy_that_buys_clicks_and_what_it_loses(planted):
    page = render_page(planted)
    first = page[: page.index('class="verdict"')]
    assert "Clicks at a price:" in first
    assert "bait gains clicks" in first and "return within 7 days" in first
    assert "prerank gains" not in first
    planted_none = {**planted, "warnings": [], "long_term": {**planted["long_term"], "marks": []}}
    quiet = render_page(planted_none)
    assert "Clicks at a price" not in quiet
    assert "No policy in the log loses any of these against chronological." in quiet


def test_every_estimator_and_term_is_explained(planted):
    page = render_page(planted)
    assert set(ESTIMATOR_WORDS) == set(NAMES)
    for name in NAMES:
        assert f"<b>{name}</b><small>{ESTIMATOR_WORDS[name].replace(chr(39), '&#39;')}" in page
    assert all(f"<dt>{word}</dt>" in page for word in GLOSSARY)


def test_an_estimator_without_a_figure_says_why(planted):
    page = render_page(planted)
    refused = {name for policy in planted["policies"] for name in policy["refused"]}
    assert {"replay", "sips"} <= refused
    assert "rejection is fair only where all slates were equally likely" in page
    assert page.count("<small>no estimate</small>") == sum(len(policy["refused"]) for policy in planted["policies"])
