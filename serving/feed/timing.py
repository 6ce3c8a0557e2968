"""Runs stages by name: measures each, holds it to its deadline, and turns a late or broken one into its fallback."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as Late
from typing import Any, TypeVar

from serving.feed.candidates import Run
from serving.store.protocol import StoreDown, Unreadable

Result = TypeVar("Result")


class Inline:
    """Stages one after the other, without deadlines; a stage that raises ends the feed. For replay, where a silent
    fallback would be judged as if it were the policy."""

    def call(
        self, run: Run, name: str, stage: Callable[[], Result], fallback: Callable[[], Result] | None = None
    ) -> Result:
        """The stage's result; its time is added to `run.took_ms[name]`."""
        begun = time.perf_counter()
        result = stage()
        run.took_ms[name] = run.took_ms.get(name, 0.0) + 1e3 * (time.perf_counter() - begun)
        return result

    def call_all(self, run: Run, stages: Mapping[str, Callable[[], Any]], group: str) -> dict[str, Any]:
        """Results by name."""
        return {name: self.call(run, name, stage) for name, stage in stages.items()}


class Punctual:
    """Stages in the threads of `executor`, each with its deadline (`deadline_ms` by stage name); for serving.

    A stage without a fallback runs in the caller's thread and its errors are the caller's. A late stage's thread ends by
    itself and its result is dropped. `StoreDown` is never turned into a fallback, unless it is one unreadable value.
    """

    def __init__(self, executor: Executor, deadline_ms: Mapping[str, float]):
        self.executor, self.deadline_ms = executor, deadline_ms

    def call(
        self, run: Run, name: str, stage: Callable[[], Result], fallback: Callable[[], Result] | None = None
    ) -> Result:
        """The stage's result, or the fallback's with the reason in `run.degraded`."""
        begun = time.perf_counter()
        try:
            if fallback is None or name not in self.deadline_ms:
                return stage()
            future = self.executor.submit(stage)
            return self._result(run, name, future, begun, fallback)
        finally:
            run.took_ms[name] = run.took_ms.get(name, 0.0) + 1e3 * (time.perf_counter() - begun)

    def call_all(self, run: Run, stages: Mapping[str, Callable[[], Any]], group: str) -> dict[str, Any]:
        """Results by name of stages that run side by side; those that are late or broken are absent."""
        begun = time.perf_counter()
        futures = {name: self.executor.submit(stage) for name, stage in stages.items()}
        results = {}
        for name, future in futures.items():
            result = self._result(run, name, future, begun, lambda: None)
            run.took_ms[name] = 1e3 * (time.perf_counter() - begun)
            if result is not None:
                results[name] = result
        return results

    def _result(
        self, run: Run, name: str, future: "Future[Result]", begun: float, fallback: Callable[[], Result]
    ) -> Result:
        left_s = self.deadline_ms.get(name, 1e3) / 1e3 - (time.perf_counter() - begun)
        try:
            return future.result(max(0.0, left_s))
        except Late:
            future.cancel()
            run.degraded.append(f"{name}: later than {self.deadline_ms.get(name, 1e3):.0f} ms")
        except StoreDown as error:
            if not isinstance(error, Unreadable):
                raise
            run.degraded.append(f"{name}: unreadable")
        except Exception as error:  # whatever breaks inside one stage, the feed goes on without it, and says so
            run.degraded.append(f"{name}: {type(error).__name__}")
        return fallback()
