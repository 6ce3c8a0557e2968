"""The feed page in a real browser, over the real API and a real Redis: a small published world, looked at and clicked."""

import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import redis

from contracts.clock import DAY, HOUR
from contracts.tables import USERS
from serving.live_events import events_after
from serving.settings import FeedSettings
from tests.serving.world import END, START, World, linear_models

pytestmark = [pytest.mark.browser, pytest.mark.redis]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PATIENT = FeedSettings(source_deadline_ms=30_000, hydrate_deadline_ms=30_000, rank_deadline_ms=30_000)
PAGE = 6
HOSTILE = "<img src=x onerror=\"document.title='taken'\"> <script>document.title='taken'</script> & <b>bold</b>"
NAMES = ["Ana Silva", "Kofi Mensah", "Mei Chen", "Lars Berg", "Leila Karimi", "Diego Rossi", "Priya Nair", "Ivan Petrov",
         "Yuki Sato", "Greta Lind", "Omar Haddad", "Ngozi Okafor"]  # fmt: skip
READERS = range(1, 9)
AUTHORS = range(9, 13)


def world() -> World:
    """Eight readers, all friends of each other and of four authors who wrote forty posts; one post is hostile."""
    made = World()
    for user_id, name in enumerate(NAMES, 1):
        made.add(
            USERS, user_id=user_id, registered_at=START, city="Oslo", attributes={"name": name}, known_at=START + 1
        )
    for one in range(1, len(NAMES) + 1):
        for other in range(one + 1, len(NAMES) + 1):
            made.friend(one, other, START + DAY)
    for number in range(40):
        post_id, author = 100 + number, AUTHORS[number % len(AUTHORS)]
        share = {"origin_post_id": post_id - 2, "kind": "quote"} if number % 8 == 7 else {}
        made.post(
            post_id, author, END - 2 * DAY + number * HOUR, topic=number % 6, text=f"Words of post {post_id}.", **share
        )
    made.post(200, AUTHORS[0], END - HOUR, topic=1, text=HOSTILE)
    for reader in READERS:
        made.show(reader, reader, [100], END - DAY)
        made.act(reader, 104, "like", END - 5 * HOUR)
    return made


@contextmanager
def running(app: object) -> Iterator[str]:
    """The application on a free port of loopback, in a thread; yields its address."""
    import uvicorn

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=20)


@pytest.fixture(scope="module")
def site(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The served page (`url`) and a client of the Redis behind it (`redis`)."""
    from serving.api.app import create_app
    from serving.publish import publish

    client = redis.Redis.from_url(redis_url)
    client.flushall()
    workspace = world().write(tmp_path_factory.mktemp("page"))
    publish(workspace, redis_url)
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is trained here: fixed weights stand in for the two models, all else is the real thing.
        patch.setattr("serving.api.deployment.load_models", lambda *_: linear_models())
        with running(create_app(workspace, redis_url, feed_settings=PATIENT)) as url:
            yield SimpleNamespace(url=url, redis=client)
    client.flushall()
    client.close()


@pytest.fixture(scope="module")
def browser() -> Iterator["object"]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: `make browser` installs one")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@dataclass
class Seen:
    """What a page asked for and complained about."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture
def look(site: SimpleNamespace, browser: "object") -> Iterator[Callable]:
    """Opens the feed of a reader; in the end no page may have complained or asked anybody but its own origin."""
    contexts, seen = [], Seen()

    def open_page(reader: int, ready: str = "article", **options: object) -> "object":
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on(
            "console", lambda message: message.type in ("error", "warning") and seen.complaints.append(message.text)
        )
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (seen.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.goto(f"{site.url}/?user={reader}&n={PAGE}")
        page.wait_for_selector(ready)
        return page

    open_page.seen = seen
    yield open_page
    for context in contexts:
        context.close()
    origin = urlsplit(site.url)
    elsewhere = [url for url in seen.requests if urlsplit(url)[:2] != origin[:2]]
    assert elsewhere == []
    assert seen.complaints == []


def shown(page: "object") -> list[int]:
    return [int(card.get_attribute("data-post")) for card in page.locator("article").all()]


def refresh(page: "object") -> None:
    with page.expect_response(re.compile("/v1/feed")):
        page.get_by_role("button", name="Refresh").click()
    page.wait_for_selector("#feed[aria-busy=false]", state="attached")


def kept(site: SimpleNamespace, kind: str, user_id: int) -> list:
    """The durable events of `kind` by a person."""
    events = [event for *_, event in events_after(site.redis, "0-0", count=100_000)]
    return [event for event in events if event.kind == kind and event.user_id == user_id]


def test_every_post_has_a_face_a_name_and_the_reason_it_is_there(look: Callable) -> None:
    page = look(1)
    cards = page.locator("article").all()
    assert len(cards) == PAGE
    faces = set()
    for card in cards:
        assert card.locator(".card-head svg.face").count() == 1
        faces.add((card.locator("button.name").inner_text(), card.locator(".card-head svg.face").inner_html()))
        assert card.locator("button.name").inner_text() in NAMES
        assert len(card.locator(".why-text").inner_text().removeprefix("Why this is here:").strip()) > 3
        card.get_by_role("button", name="Scores").click()
        assert {"click", "like", "comment", "share", "hide"} <= set(card.locator(".scores .bars dt").all_inner_texts())
    names = [name for name, _ in faces]
    assert len(names) == len(set(names)), "one person has one face"
    assert len({drawing for _, drawing in faces}) == len(faces), "two people have two faces"


def test_a_like_looks_done_once_the_server_has_acknowledged_it_and_not_before(
    look: Callable, site: SimpleNamespace
) -> None:
    page = look(2)
    held = []
    page.route("**/v1/events", lambda route: held.append(route))
    card = page.locator("article").first
    like = card.locator("[data-action=like]")
    like.click()
    page.wait_for_selector("[data-action=like][aria-busy=true]")
    assert like.get_attribute("aria-pressed") is None and like.inner_text() == "Like"
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    page.wait_for_selector("[data-action=like][aria-pressed=true]")
    assert like.inner_text() == "Liked"
    assert [event.post_id for event in kept(site, "like", 2)] == [int(card.get_attribute("data-post"))]


def test_a_failed_like_says_why_and_its_retry_counts_once(look: Callable, site: SimpleNamespace) -> None:
    page = look(3)
    sent = []

    def lose_the_answer(route: "object") -> None:
        sent.append(route.request.post_data_json["events"][0]["event_id"])
        if len(sent) > 1:
            return route.continue_()
        assert route.fetch().status == 202
        route.fulfill(status=503, json={"error": "Redis went away."})

    page.route("**/v1/events", lose_the_answer)
    like = page.locator("article").first.locator("[data-action=like]")
    like.click()
    alert = page.get_by_role("alert").filter(has_text="Redis went away.")
    alert.wait_for()
    assert like.get_attribute("aria-pressed") is None
    alert.get_by_role("button", name="Try again").click()
    page.wait_for_selector("[data-action=like][aria-pressed=true]")
    assert len(sent) == 2 and sent[0] == sent[1]
    assert len(kept(site, "like", 3)) == 1
    look.seen.complaints = [one for one in look.seen.complaints if "503" not in one]


def test_a_hidden_post_and_a_blocked_author_are_gone_from_the_next_feeds(look: Callable, site: SimpleNamespace) -> None:
    page = look(4)
    first = page.locator("article").first
    hidden = int(first.get_attribute("data-post"))
    first.locator("[data-action=hide]").click()
    page.get_by_text("Hidden.", exact=True).wait_for()
    assert hidden not in shown(page)

    card = page.locator("article").first
    blocked, name = card.get_attribute("data-author"), card.locator("button.name").inner_text()
    card.get_by_role("button", name="More about").click()
    page.get_by_role("menuitem", name=f"Block {name}").click()
    page.get_by_role("dialog").get_by_role("button", name="Block", exact=True).click()
    page.get_by_text(f"{name} is blocked.").wait_for()
    assert page.locator(f"article[data-author='{blocked}']").count() == 0
    assert [event.target_id for event in kept(site, "block", 4)] == [int(blocked)]

    for _ in range(3):
        refresh(page)
        assert hidden not in shown(page)
        assert name not in page.locator("#feed .name").all_inner_texts(), "not even as the author of a quoted post"


def test_refresh_and_more_show_other_posts_until_all_were_shown_and_none_twice(look: Callable) -> None:
    page = look(5)
    pages = [shown(page)]
    refresh(page)
    pages.append(shown(page))
    while page.locator("#more").count():
        before = page.locator("article").count()
        with page.expect_response(re.compile("/v1/feed")):
            page.locator("#more").click()
        page.wait_for_selector("#feed[aria-busy=false]", state="attached")
        pages.append(shown(page)[before:])
    assert len(pages) > 4
    everything = [post_id for ids in pages for post_id in ids]
    assert len(everything) == len(set(everything))
    assert {*range(101, 140), 200} == set(everything), "all but the one that was seen before"
    page.get_by_role("heading", name="All caught up, Leila").wait_for()


def test_hostile_text_stays_text(look: Callable) -> None:
    page = look(6)
    while 200 not in shown(page):
        page.locator("#more").click()
        page.wait_for_selector("#feed[aria-busy=false]", state="attached")
    assert page.locator("article[data-post='200'] .text").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    assert "taken" not in page.title()


def test_a_post_written_on_the_page_reaches_a_friends_feed_as_text(look: Callable) -> None:
    page = look(7)
    page.get_by_label("New post as Priya Nair").fill(f"Fresh today {HOSTILE}")
    page.get_by_role("button", name="Post", exact=True).click()
    page.get_by_label("Your new post").wait_for()

    page.locator(".picker-button").click()
    page.get_by_role("combobox", name="See the feed as").press_sequentially("ivan")
    page.get_by_role("option", name="Ivan Petrov").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Friend feed of Ivan Petrov").wait_for(state="attached")
    page.wait_for_selector("article")
    fresh = page.locator("article").filter(has_text="Fresh today")
    while not fresh.count():
        page.locator("#more").click()
        page.wait_for_selector("#feed[aria-busy=false]", state="attached")
    assert fresh.locator("button.name").inner_text() == "Priya Nair"
    assert fresh.locator(".text").inner_text() == f"Fresh today {HOSTILE}"
    assert page.locator("img").count() == 0


def test_what_was_read_is_reported_once_as_dwell_in_seconds(look: Callable, site: SimpleNamespace) -> None:
    page = look(1)
    top = shown(page)[0]
    for _ in range(2):
        page.wait_for_timeout(2300)
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(200)
        page.evaluate("window.scrollTo(0, 0)")
    refresh(page)
    read = [event for event in kept(site, "dwell", 1) if event.post_id == top]
    assert [2 <= event.value < 60 for event in read] == [True]


def test_what_was_read_arrives_though_another_author_of_the_page_has_blocked_the_reader_by_then(
    look: Callable, site: SimpleNamespace
) -> None:
    page = look(7)
    page.set_viewport_size({"width": 1280, "height": 3000})
    author_of = {int(card.get_attribute("data-post")): int(card.get_attribute("data-author"))
                 for card in page.locator("article").all()}  # fmt: skip
    blocker = next(iter(author_of.values()))
    others = {post_id for post_id, author in author_of.items() if author != blocker and (post_id - 100) % 8 != 7}
    assert others, "somebody else has an original on the page"
    page.wait_for_timeout(2500)

    def tell(kind: str) -> None:
        event = {"event_id": f"{kind} of 7", "kind": kind, "user_id": blocker, "target_id": 7}
        assert page.request.post(f"{site.url}/v1/events", data={"events": [event]}).status == 202

    tell("block")
    refresh(page)
    waited = 0
    while not others <= {event.post_id for event in kept(site, "dwell", 7)} and waited < 100:
        page.wait_for_timeout(100)
        waited += 1
    tell("unblock")
    assert others <= {event.post_id for event in kept(site, "dwell", 7)}
    look.seen.complaints = [one for one in look.seen.complaints if "404" not in one]


def test_the_keyboard_alone_moves_between_posts_and_likes_one(look: Callable, site: SimpleNamespace) -> None:
    page = look(8, reduced_motion="reduce", color_scheme="dark")
    page.locator("article").first.focus()
    page.keyboard.press("j")
    second = page.locator("article").nth(1)
    assert page.evaluate("document.activeElement.dataset.post") == second.get_attribute("data-post")
    page.keyboard.press("l")
    second.locator("[aria-pressed=true]").wait_for()
    page.locator("#live").filter(has_text="You liked").wait_for(state="attached")
    assert [event.post_id for event in kept(site, "like", 8)] == [int(second.get_attribute("data-post"))]


def test_an_unknown_reader_gets_the_servers_own_sentence(look: Callable) -> None:
    page = look(999, ready="[role=alert]")
    assert "there is no user 999" in page.get_by_role("alert").inner_text()
    look.seen.complaints = [one for one in look.seen.complaints if "404" not in one]


@pytest.mark.parametrize("width", [320, 390, 820, 1280])
def test_no_width_scrolls_sideways(look: Callable, width: int) -> None:
    page = look(8)
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_allows_itself_nothing_inline_and_nobody_else(site: SimpleNamespace, browser: "object") -> None:
    context = browser.new_context()
    policy = context.request.get(f"{site.url}/").headers["content-security-policy"]
    context.close()
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy and "http" not in policy and "data:" not in policy


def test_a_feed_that_a_late_stage_left_empty_does_not_say_that_all_was_shown(look: Callable) -> None:
    page = look(1)

    def late(route: "object") -> None:
        body = route.fetch().json()
        route.fulfill(json={**body, "items": [], "exhausted": True, "degraded": ["social: late, left out"]})

    page.route("**/v1/feed*", late)
    refresh(page)
    page.get_by_role("heading", name="No posts this time").wait_for()
    page.locator(".banner").get_by_text("Social: late, left out").wait_for()
    page.unroute("**/v1/feed*")
    page.get_by_role("button", name="Look again").click()
    page.wait_for_selector("article")
