"""What only the environment knows: the exact expected outcome of any slate at any request.

Shapes: N requests, K slate positions, M pool slots, A tasks.
"""

import io
from dataclasses import dataclass

import numpy as np

from contracts.errors import BadInput
from contracts.files import canonical_json, hash_bytes, read_json, write_atomically
from contracts.lake import content_hashes
from contracts.tables import IMPRESSIONS, POSTS, REQUESTS, USERS
from contracts.tasks import TASK_NAMES, TASKS
from contracts.workspace import Workspace
from simulator.environment.behaviour import IN_WINDOW, LATENT_NAMES, Latents, slate_probabilities

LOG_TABLES = (USERS, POSTS, REQUESTS, IMPRESSIONS)
WORTH_A = np.array([task.worth for task in TASKS])


@dataclass(frozen=True)
class Truth:
    """The behaviour model with this log's hidden quantities. It depends on viewer, slate and time alone."""

    latents: Latents

    def save(self, workspace: Workspace) -> None:
        """Writes `truth/latents.npz`, then `truth/truth.json` with its hash and that of the log it belongs to."""
        sink = io.BytesIO()
        np.savez_compressed(sink, **{name: getattr(self.latents, name) for name in LATENT_NAMES})
        content = sink.getvalue()
        write_atomically(workspace.truth / "latents.npz", content)
        record = {"file": "latents.npz", "hash": hash_bytes(content), "tasks": TASK_NAMES, "worth": WORTH_A.tolist(),
                  "log": content_hashes(workspace.lake, LOG_TABLES)}  # fmt: skip
        write_atomically(workspace.truth / "truth.json", canonical_json(record))

    @classmethod
    def exists(cls, workspace: Workspace) -> bool:
        """Whether the log now in the lake came from the environment; a truth left by an earlier log does not count."""
        path = workspace.truth / "truth.json"
        return path.is_file() and read_json(path)["log"] == content_hashes(workspace.lake, LOG_TABLES)

    @classmethod
    def load(cls, workspace: Workspace) -> "Truth":
        """Reads what `save` wrote; `BadInput` when there is none or its file was changed."""
        if not cls.exists(workspace):
            raise BadInput(
                f"{workspace.truth} holds no truth of the log in {workspace.lake.root}: only a simulated log has one"
            )
        record = read_json(workspace.truth / "truth.json")
        path = workspace.truth / record["file"]
        content = path.read_bytes() if path.is_file() else b""
        if hash_bytes(content) != record["hash"]:
            raise BadInput(f"{path} is not the file that truth.json describes: run `feedloop simulate` again")
        with np.load(io.BytesIO(content)) as arrays:
            missing = [name for name in LATENT_NAMES if name not in arrays]
            if missing:
                raise BadInput(
                    f"{path} lacks {', '.join(missing)}, an earlier version wrote it: run `feedloop simulate` again"
                )
            return cls(Latents(**{name: arrays[name] for name in LATENT_NAMES}))

    def _users(self, user_ids_N: np.ndarray) -> np.ndarray:
        return _index(self.latents.user_ids_U, np.asarray(user_ids_N, np.int64), "user")

    def _posts(self, post_ids_NK: np.ndarray) -> np.ndarray:
        post_ids_NK = np.asarray(post_ids_NK, np.int64)
        filled_NK = post_ids_NK >= 0
        post_NK = np.full(post_ids_NK.shape, -1)
        post_NK[filled_NK] = _index(self.latents.post_ids_P, post_ids_NK[filled_NK], "post")
        return post_NK

    def action_probabilities(
        self, user_ids_N: np.ndarray, post_ids_NK: np.ndarray, requested_at_N: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Task -> probability (N, K) that the post at this position earns the action inside the attribution window.

        `post_ids_NK`: slates, -1 for an empty position (probability 0). `requested_at_N`: UTC microseconds. Includes
        examination of the position and fatigue from what stands above. `BadInput` names an id that the log lacks.
        """
        chances_NKA = slate_probabilities(
            self.latents, self._users(user_ids_N), self._posts(post_ids_NK), np.asarray(requested_at_N, np.int64)
        )
        chances_NKA *= IN_WINDOW * self.latents.examination.expected(chances_NKA)[:, :, None]
        return {name: chances_NKA[..., i] for i, name in enumerate(TASK_NAMES)}

    def slate_values(self, user_ids_N: np.ndarray, post_ids_NK: np.ndarray, requested_at_N: np.ndarray) -> np.ndarray:
        """Expected reward (N,) of whole slates: sum over positions and tasks of worth x probability."""
        chances = self.action_probabilities(user_ids_N, post_ids_NK, requested_at_N)
        return sum(
            (WORTH_A[i] * chances[name].sum(axis=1) for i, name in enumerate(TASK_NAMES)), np.zeros(len(user_ids_N))
        )

    def greedy_slates(
        self, user_ids_N: np.ndarray, pools_NM: np.ndarray, requested_at_N: np.ndarray, slate_size: int
    ) -> np.ndarray:
        """Slates (N, slate_size) of post ids that an all-knowing policy fills from the top, best next post first.

        `pools_NM`: candidate post ids, -1 for none. Ties go to the larger post_id. Empty positions hold -1.
        """
        pools_NM = -np.sort(-np.asarray(pools_NM, np.int64), axis=1)
        n, m = pools_NM.shape
        slates_NK = np.full((n, slate_size), -1, np.int64)
        left_NM = pools_NM >= 0
        users_R, at_R = np.repeat(user_ids_N, m), np.repeat(requested_at_N, m)
        for position in range(min(slate_size, m)):
            tried_RK = np.repeat(slates_NK[:, : position + 1], m, axis=0)
            tried_RK[:, position] = pools_NM.ravel()
            chances = self.action_probabilities(users_R, tried_RK, at_R)
            gain_NM = sum(WORTH_A[i] * chances[name][:, position] for i, name in enumerate(TASK_NAMES)).reshape(n, m)
            best_N = np.where(left_NM, gain_NM, -np.inf).argmax(axis=1)
            has_N = left_NM.any(axis=1)
            slates_NK[:, position] = np.where(has_N, pools_NM[np.arange(n), best_N], -1)
            left_NM[np.arange(n), best_N] = False
        return slates_NK


def _index(sorted_ids: np.ndarray, wanted: np.ndarray, what: str) -> np.ndarray:
    at = np.searchsorted(sorted_ids, wanted)
    missing = (at >= len(sorted_ids)) | (sorted_ids[np.minimum(at, len(sorted_ids) - 1)] != wanted)
    if missing.any():
        raise BadInput(
            f"the truth knows no {what} {wanted[missing][0]}; {int(missing.sum())} of {wanted.size} ids are unknown"
        )
    return at
