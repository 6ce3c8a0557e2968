"""What the service counts and times, in Prometheus' terms."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from serving.feed.candidates import Feed

_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0)


class Metrics:
    """One registry per application, so that two in one process do not add up."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("feed_requests", "Feeds asked for.", ["policy", "version", "status"], registry=registry)
        self.seconds = Histogram(
            "feed_seconds", "Time to make a feed.", ["policy"], buckets=_BUCKETS, registry=registry
        )
        self.stages = Histogram("feed_stage_seconds", "Time per stage.", ["stage"], buckets=_BUCKETS, registry=registry)
        self.degraded = Counter("feed_degraded", "Stages that fell back.", ["stage"], registry=registry)
        self.shown = Counter("feed_posts_shown", "Posts in feeds.", ["policy"], registry=registry)
        self.events = Counter("events", "Events by kind.", ["kind", "result"], registry=registry)

    def observe(self, feed: Feed, version: str, took_s: float) -> None:
        """Counts a finished feed."""
        self.requests.labels(feed.policy, version, "200").inc()
        self.seconds.labels(feed.policy).observe(took_s)
        self.shown.labels(feed.policy).inc(len(feed))
        for stage, took_ms in feed.took_ms.items():
            self.stages.labels(stage).observe(took_ms / 1e3)
        for reason in feed.degraded:
            self.degraded.labels(reason.split(":")[0]).inc()

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)
