"""The FastAPI application: feeds, events, people, health, metrics, and the page at the root."""

import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi import Path as InPath
from fastapi import Query as InQuery
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from contracts.workspace import Workspace
from serving.api import models as shapes
from serving.api.accept import live_events
from serving.api.body_limit import BodyLimit
from serving.api.deployment import SERVED_POLICIES, Deployment, Deployments
from serving.api.errors import ApiError, answer, install
from serving.api.metrics import Metrics
from serving.api.presenting import feed_response, friend_counts, person
from serving.feed.candidates import Query
from serving.settings import ApiSettings, FeedSettings
from serving.store.families import key
from serving.store.packing import Profile, unpack_profile
from serving.store.protocol import StoreDown
from serving.store.redis import connect

WEB = Path(__file__).resolve().parent.parent / "web"
UserId = Annotated[int, InQuery(description="Who asks.")]
_CONTENT_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def create_app(workspace: Workspace, redis_url: str, settings: ApiSettings | None = None,
               feed_settings: FeedSettings | None = None) -> FastAPI:  # fmt: skip
    """The application over one workspace's models and one Redis; it starts also when nothing is published yet."""
    settings, feed_settings = settings or ApiSettings(), feed_settings or FeedSettings()
    client = connect(redis_url, settings.redis_timeout_s)
    executor = ThreadPoolExecutor(settings.threads, thread_name_prefix="stage")
    deployments = Deployments(workspace, client, executor, settings, feed_settings)
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        deployments.start()
        yield
        deployments.stop()
        executor.shutdown(wait=False, cancel_futures=True)
        client.close()

    app = FastAPI(title="feedloop", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.deployments, app.state.metrics = deployments, metrics
    install(app)
    app.add_middleware(BodyLimit)
    app.middleware("http")(_with_headers)
    _feed_routes(app, deployments, metrics)
    _event_routes(app, deployments, metrics)
    _people_routes(app, deployments)
    _health_routes(app, deployments, metrics)
    if WEB.is_dir():
        app.router.default = _page_beside(app.router.default)
    return app


def _page_beside(nothing: ASGIApp) -> ASGIApp:
    """The page's files for what no route knows; not mounted, as a mount takes a known path's other methods for files."""
    files = StaticFiles(directory=WEB, html=True)

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        of_page = scope["type"] == "http" and not scope["path"].startswith("/v1/")
        await (files if of_page else nothing)(scope, receive, send)

    return page


async def _with_headers(request: Request, call_next: Any) -> Response:
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = _CONTENT_POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-store" if request.url.path.startswith("/v1/") else "no-cache"
    return response


def _documented(shape: type, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI page says of a route that makes its own JSON."""
    described: dict[int | str, dict[str, Any]] = {status: {"model": shape}}
    return described | {code: {"model": shapes.ErrorResponse} for code in (403, 404, 413, 422, 503)}


def _known(deployment: Deployment, user_id: int) -> Profile:
    value = deployment.store.get_many([key("user", user_id)])[0] if 0 <= user_id < 2**63 else None
    if value is None:
        raise ApiError(404, f"there is no user {user_id}")
    return unpack_profile(value)


def _feed_routes(app: FastAPI, deployments: Deployments, metrics: Metrics) -> None:
    @app.get("/v1/feed", responses=_documented(shapes.FeedResponse))
    def feed(
        user_id: UserId,
        n: Annotated[int, InQuery(ge=1, le=50, description="How many posts.")] = 10,
        policy: Annotated[str, InQuery(description=f"One of {', '.join(SERVED_POLICIES)}.")] = "full",
    ) -> Response:
        """The next page of a person's feed."""
        begun = time.perf_counter()
        if policy not in SERVED_POLICIES:
            raise ApiError(422, f"policy: there is no policy {policy}; there are {', '.join(SERVED_POLICIES)}")
        try:
            deployment = deployments.current()
            _known(deployment, user_id)
            query = Query(user_id, deployment.now, n, request_id=secrets.randbits(52))
            made = deployment.policies[policy].run(query, deployment.store)
            body = feed_response(deployment, made, 0.0)
        except (StoreDown, ApiError) as error:
            status = "503" if isinstance(error, StoreDown) else str(error.status)
            metrics.requests.labels(policy, "", status).inc()
            raise
        took_s = time.perf_counter() - begun
        metrics.observe(made, deployment.meta.version, took_s)
        body["took_ms"] = round(took_s * 1e3, 3)
        return answer(200, body)


def _event_routes(app: FastAPI, deployments: Deployments, metrics: Metrics) -> None:
    @app.post("/v1/events", status_code=202, responses=_documented(shapes.EventsAccepted, 202))
    def events(batch: shapes.EventBatch) -> Response:
        """Takes what happened; the answer leaves once all of it is durable and in force."""
        deployment = deployments.current()
        made = live_events(deployment, batch.events)
        counted = deployment.events.commit(made.live)
        for event_id, new in counted.items():
            metrics.events.labels(made.live[event_id].kind, "accepted" if new else "repeated").inc()
        for event, claim in zip(batch.events, made.claims):
            if claim is None:
                metrics.events.labels(event.kind, "repeated").inc()
        accepted = sum(claim is not None and counted[claim] for claim in made.claims)
        return answer(202, {"accepted": accepted, "repeated": len(batch.events) - accepted, "posts": made.posts})


def _people_routes(app: FastAPI, deployments: Deployments) -> None:
    @app.get("/v1/users", responses=_documented(shapes.UserList))
    def users(
        n: Annotated[int, InQuery(ge=1, le=200)] = 24,
        offset: Annotated[int, InQuery(ge=0)] = 0,
        q: Annotated[str, InQuery(max_length=100, description="Part of a name, or the start of an id.")] = "",
        seed: Annotated[int | None, InQuery(description="Draws people at random, the same for the same seed.")] = None,
    ) -> Response:
        """People to look through the eyes of."""
        deployment = deployments.current()
        wanted = q.strip().casefold()
        found = [
            one for one in deployment.people if wanted in one.name.casefold() or str(one.user_id).startswith(wanted)
        ]
        if seed is not None:
            random.Random(seed).shuffle(found)
        page = found[offset : offset + n]
        friends = friend_counts(deployment, [one.user_id for one in page])
        people = [person(one, one.user_id, count) for one, count in zip(page, friends)]
        return answer(200, {"users": people, "total": len(found)})

    @app.get("/v1/users/{user_id}", responses=_documented(shapes.Person))
    def user(user_id: Annotated[int, InPath()]) -> Response:
        """One person."""
        deployment = deployments.current()
        return answer(200, person(_known(deployment, user_id), user_id, friend_counts(deployment, [user_id])[0]))

    @app.get("/v1/topics", responses=_documented(shapes.TopicList))
    def topics() -> Response:
        """The topics that a post can have."""
        names = sorted(deployments.current().topics.items(), key=lambda pair: pair[1].casefold())
        return answer(200, {"topics": [{"topic": topic, "name": name} for topic, name in names]})


def _health_routes(app: FastAPI, deployments: Deployments, metrics: Metrics) -> None:
    @app.get("/healthz", responses=_documented(shapes.Health))
    def healthz() -> Response:
        """This process answers."""
        return answer(200, {"status": "ok", "version": None, "detail": None})

    @app.get("/readyz", responses=_documented(shapes.Health))
    def readyz() -> Response:
        """A version is loaded and Redis answers."""
        try:
            version = deployments.ready().meta.version
        except StoreDown as error:
            return answer(503, {"status": "not_ready", "version": None, "detail": str(error), "error": str(error)})
        return answer(200, {"status": "ok", "version": version, "detail": None})

    @app.get("/metrics", response_class=Response)
    def prometheus() -> Response:
        """Counts and times."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
