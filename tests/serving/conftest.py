"""The API over a small published world."""

import pytest
from fastapi.testclient import TestClient

from contracts.workspace import Workspace
from serving.api import create_app
from serving.publish import publish


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    from tests.serving.test_api import small_world

    return small_world().write(tmp_path_factory.mktemp("api"))


@pytest.fixture
def api(workspace, redis_client, redis_url):
    from tests.serving.test_api import UNHURRIED

    publish(workspace, redis_url)
    with TestClient(create_app(workspace, redis_url, feed_settings=UNHURRIED), raise_server_exceptions=False) as client:
        yield client
