"""What the API refuses: every failure has its status and one sentence, and leaves nothing behind."""

import pytest

from tests.serving.test_api import page

pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*httpx")]


def raw(api, content: str | bytes):
    """The answer to a body as it is, since a client's JSON encoder refuses what an attacker can write by hand."""
    return api.post("/v1/events", content=content, headers={"content-type": "application/json"})


FAILURES = [
    ("GET", "/v1/feed?user_id=999", None, 404, "there is no user 999"),
    ("GET", "/v1/feed?user_id=99999999999999999999", None, 404, "there is no user"),
    ("GET", "/v1/feed?user_id=1&n=-1", None, 422, "n: input should be greater than or equal to 1"),
    ("GET", "/v1/feed?user_id=1&n=51", None, 422, "n: input should be less than or equal to 50"),
    ("GET", "/v1/feed?user_id=one", None, 422, "user_id: input should be a valid integer"),
    ("GET", "/v1/feed", None, 422, "user_id: field required"),
    ("GET", "/v1/feed?user_id=1&policy=best", None, 422, "there is no policy best"),
    ("GET", "/v1/users/999", None, 404, "there is no user 999"),
    ("GET", "/v1/nothing", None, 404, "there is nothing at /v1/nothing"),
    ("POST", "/v1/nothing", {}, 404, "there is nothing at /v1/nothing"),
    ("GET", "/nothing.js", None, 404, "there is nothing at /nothing.js"),
    ("GET", "/v1/events", None, 405, "GET is not there for /v1/events; POST is"),
    ("DELETE", "/v1/users/1", None, 405, "DELETE is not there for /v1/users/1; GET is"),
    ("POST", "/index.html", {}, 405, "POST is not there for /index.html"),
    ("POST", "/v1/events", {"events": []}, 422, "events: list should have at least 1 item"),
    ("POST", "/v1/events", {"events": [{"kind": "like"}]}, 422, "event_id: field required"),
    ("POST", "/v1/events", {"events": [{"kind": "dance", "event_id": "e", "user_id": 1}]}, 422, "'dance'"),
    ("POST", "/v1/events", {"events": [{"kind": "like", "event_id": "e", "user_id": 1, "post_id": 5}]}, 404, "there is no post 5"),
    ("POST", "/v1/events", {"events": [{"kind": "like", "event_id": "e", "user_id": 77, "post_id": 100}]}, 404, "no user 77"),
    ("POST", "/v1/events", {"events": [{"kind": "block", "event_id": "e", "user_id": 1, "target_id": 1}]}, 422, "cannot block themselves"),
    ("POST", "/v1/events", {"events": [{"kind": "delete_post", "event_id": "e", "user_id": 1, "post_id": 100}]}, 403, "is not user 1's"),
    ("POST", "/v1/events", {"events": [{"kind": "post", "event_id": "e", "user_id": 1, "text": "x"}]}, 422, "known topic"),
    ("POST", "/v1/events", {"events": [{"kind": "post", "event_id": "e", "user_id": 1, "topic": 1, "text": " "}]}, 422, "without text"),
]  # fmt: skip


OUT_OF_RANGE = [
    ('{"kind": "dwell", "post_id": 100, "value": 1e400', "value: input should be a finite number"),
    ('{"kind": "dwell", "post_id": 100, "value": NaN', "value: input should be a finite number"),
    ('{"kind": "dwell", "post_id": 100, "value": 86401', "the value of a dwell is 86400 at most"),
    ('{"kind": "view", "post_id": 100, "value": 86400001', "the value of a view is 86400000 at most"),
    ('{"kind": "dwell", "post_id": 100, "value": -1', "value: input should be greater than or equal to 0"),
    (f'{{"kind": "click", "post_id": 100, "request_id": {2**63}', "request_id: input should be less than"),
    (f'{{"kind": "click", "post_id": 100, "request_id": {2**64}', "request_id: input should be less than"),
    ('{"kind": "click", "post_id": 100, "request_id": -1', "request_id: input should be greater than or equal to 0"),
    (f'{{"kind": "click", "post_id": {2**64}', "post_id: input should be less than"),
    (f'{{"kind": "delete_post", "post_id": {2**64}', "post_id: input should be less than"),
    (f'{{"kind": "block", "target_id": {2**64}', "target_id: input should be less than"),
    (f'{{"kind": "post", "text": "x", "topic": 1, "origin_post_id": {2**64}', "origin_post_id: input should be less"),
    (f'{{"kind": "post", "text": "x", "topic": {2**31}', "topic: input should be less than"),
    (f'{{"kind": "post", "text": "x", "topic": 1, "visibility": "list", "audience": [3, {2**63}]',
     "audience.1: input should be less than"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "sentence"), OUT_OF_RANGE)
def test_a_number_that_the_log_cannot_hold_is_refused_in_a_sentence(api, event, sentence):
    answer = raw(api, f'{{"events": [{event}, "event_id": "e", "user_id": 1}}]}}')
    assert answer.status_code == 422 and sentence in answer.json()["error"]


def test_the_user_of_an_event_has_an_id_that_the_log_can_hold(api):
    answer = raw(api, f'{{"events": [{{"kind": "click", "post_id": 100, "event_id": "e", "user_id": {2**64}}}]}}')
    assert answer.status_code == 422 and "user_id: input should be less than" in answer.json()["error"]


@pytest.mark.parametrize(("method", "path", "body", "status", "sentence"), FAILURES)
def test_every_failure_is_one_sentence(api, method, path, body, status, sentence):
    answer = api.request(method, path, json=body)
    assert answer.status_code == status and list(answer.json()) == ["error"]
    assert sentence in answer.json()["error"] and "Traceback" not in answer.text


BROKEN = [
    (b"{", "the request's body is not JSON: expecting property name enclosed in double quotes at character 1"),
    (b"", "the request: field required"),
    (b"[" * 100_000, "there was an error parsing the body"),
    (b"\xff", "there was an error parsing the body"),
    (b"[]", "the request: input should be a valid dictionary"),
]


@pytest.mark.parametrize(("content", "sentence"), BROKEN)
def test_a_body_that_is_not_json_is_refused_in_a_sentence(api, content, sentence):
    answer = raw(api, content)
    assert answer.status_code in (400, 422) and sentence in answer.json()["error"]


def test_a_method_that_a_path_does_not_have_is_405_and_the_page_is_served_all_the_same(api):
    for path in ("/v1/feed?user_id=1", "/healthz"):
        answer = api.head(path)
        assert answer.status_code == 405 and answer.headers["allow"] == "GET"
    for path in ("/", "/app.js"):
        assert api.get(path).status_code == 200 and api.head(path).status_code == 200


def test_a_body_of_over_a_megabyte_is_refused_whether_it_says_its_length_or_not(api):
    text = '{"events": [{"kind": "click", "event_id": "big", "user_id": 1, "post_id": 100}]}'
    long, fits = text.ljust(1_000_001).encode(), text.ljust(1_000_000).encode()
    pieces = (long[at : at + 100_000] for at in range(0, len(long), 100_000))
    for content in (long, pieces):
        answer = raw(api, content)
        assert answer.status_code == 413 and "longer than 1000000 bytes" in answer.json()["error"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert raw(api, fits).status_code == 202


def test_a_refused_event_of_a_batch_leaves_none_of_it_behind(api):
    good = {"kind": "like", "event_id": "good", "user_id": 3, "post_id": 100}
    assert api.post("/v1/events", json={"events": [good, {**good, "event_id": "bad", "post_id": 5}]}).status_code == 404
    item = next(one for one in page(api, n=50)["items"] if one["post_id"] == 100)
    assert item["engagement"]["likes"] == 0
