"""Long-term satisfaction from the log itself: who came back, who hid and blocked, which ties faded, by policy or experiment arm.

Shapes: U viewers with an arm, S sessions, N rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import DAY, HOUR, to_datetime
from contracts.dataset import Dataset
from contracts.lake import Lake
from contracts.tables import ACTIONS, BLOCKS, FRIENDSHIPS, IMPRESSIONS, SESSIONS, USERS, TableSpec
from contracts.tasks import CONTACTS
from contracts.workspace import Workspace
from simulator.evaluation.satisfaction import CLICKS, RETURN_DAYS, Sums, judge_arms, marks
from simulator.replay.question import BASELINE
from simulator.replay.settings import ReplaySettings

_WEEK = 7 * DAY


def long_term(
    lake: Lake, dataset: Dataset, settings: ReplaySettings, beside: Sequence[Workspace] = ()
) -> dict[str, Any]:
    """Every measure of `MEASURES` over the whole log, by arm, with `marks` for arms that lose any.

    An arm is what `impressions.experiment` says, else `impressions.policy`. A viewer who saw several belongs to none,
    since nobody can say which of them made the viewer come back; they are counted. The logs of the workspaces `beside` add
    their arms. The baseline is the arm with "control" in its name, else a chronological one, else that of most viewers.
    """
    by_arm: dict[str, dict[str, Sums]] = {}
    mixed = 0
    for other, (one, described) in [("", (lake, dataset)), *((w.root.name, (w.lake, w.dataset())) for w in beside)]:
        found, several = _by_arm(one, described)
        mixed += several
        by_arm |= {arm if arm not in by_arm else f"{arm}, {other}": sums for arm, sums in found.items()}
    viewers = {arm: len(sums[CLICKS].numerator_V) for arm, sums in by_arm.items()}
    report: dict[str, Any] = {
        "start": f"{to_datetime(dataset.start):%Y-%m-%d}", "end": f"{to_datetime(dataset.end):%Y-%m-%d}", "viewers": viewers,
        "mixed_viewers": mixed, "baseline": _baseline(viewers) if len(viewers) > 1 else None, "measures": [], "marks": [],
    }  # fmt: skip
    report["note"] = _note(report, dataset, len(beside))
    if by_arm:
        report["measures"] = judge_arms(by_arm, report["baseline"], settings.resamples, settings.level, settings.seed)
        report["marks"] = marks(report["measures"], report["baseline"])
    return report


def _by_arm(lake: Lake, dataset: Dataset) -> tuple[dict[str, dict[str, Sums]], int]:
    """Arm -> measure key -> sums over its viewers, and how many viewers saw several arms."""
    viewers_U, arm_U, arms, mixed = _arms(lake, dataset)
    if not len(viewers_U):
        return {}, mixed
    sums_U = {
        **_feed_sums(lake, dataset, viewers_U),
        **_visit_sums(lake, dataset, viewers_U),
        **_tie_sums(lake, dataset, viewers_U),
    }
    return {
        arm: {key: Sums(one.numerator_V[arm_U == a], one.denominator_V[arm_U == a]) for key, one in sums_U.items()}
        for a, arm in enumerate(arms)
    }, mixed


def _arms(lake: Lake, dataset: Dataset) -> tuple[np.ndarray, np.ndarray, list[str], int]:
    """Viewers (U,) of one arm only, in order of id, the index (U,) of it, the arms' names, and how many saw several."""
    shown = lake.read(IMPRESSIONS, ["user_id", "policy", "experiment"], dataset.start, dataset.end)
    names = pc.coalesce(shown["experiment"], shown["policy"]).combine_chunks().dictionary_encode()
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    arms = names.dictionary.to_pylist()
    order = np.argsort(np.array(arms, object), kind="stable") if arms else np.zeros(0, np.int64)
    place = np.empty(len(arms), np.int64)
    place[order] = np.arange(len(arms))
    arm_N = place[names.indices.to_numpy()] if len(names) else np.zeros(0, np.int64)
    ids, user_N = np.unique(shown["user_id"].to_numpy(), return_inverse=True)
    pair_N = np.unique(user_N * max(len(arms), 1) + arm_N)
    pair_user, pair_arm = pair_N // max(len(arms), 1), pair_N % max(len(arms), 1)
    _, first, count = np.unique(pair_user, return_index=True, return_counts=True)
    alone = count == 1
    arm_U = pair_arm[first[alone]]
    kept = np.unique(arm_U)
    return ids[alone], np.searchsorted(kept, arm_U), [arms[order[a]] for a in kept], int((~alone).sum())


def _baseline(viewers: dict[str, int]) -> str:
    named = [arm for word in ("control", BASELINE) for arm in viewers if word in arm.lower()]
    return named[0] if named else max(viewers, key=lambda arm: viewers[arm])


def _note(report: dict[str, Any], dataset: Dataset, beside: int) -> str:
    said = []
    if report["baseline"] is None:
        said.append(
            "All viewers of this log saw one policy, so it says how they fared and not what another policy would do to them."
        )
    if beside:
        said.append(
            f"Arms of other logs ({beside}) stand beside it: what differs between logs apart from the policy counts too."
        )
    if report["mixed_viewers"]:
        said.append(f"{report['mixed_viewers']:,} viewers who saw several policies belong to none.")
    short = [days for days in RETURN_DAYS if days * DAY >= dataset.end - dataset.start]
    if short:
        said.append(
            f"The log of {(dataset.end - dataset.start) / DAY:.0f} days is too short for a return within {short[0]} days."
        )
    return " ".join(said)


def _feed_sums(lake: Lake, dataset: Dataset, viewers_U: np.ndarray) -> dict[str, Sums]:
    shown_U = _counted(viewers_U, _column(lake, IMPRESSIONS, dataset))
    actions = lake.read(ACTIONS, ["user_id", "kind"], dataset.start, dataset.end)
    found = {}
    for key, kind in (("clicks", "click"), ("hides", "hide")):
        done_U = _counted(viewers_U, actions.filter(pc.equal(actions["kind"], kind))["user_id"].to_numpy())
        # A log without such a task does not say that nobody did it.
        found[key] = Sums(done_U, shown_U * (kind in dataset.tasks))
    has_blocks = lake.exists(BLOCKS) and lake.manifest(BLOCKS).rows > 0
    blocks = _column(lake, BLOCKS, dataset) if has_blocks else np.zeros(0, np.int64)
    return found | {"blocks": Sums(_counted(viewers_U, blocks), shown_U * has_blocks)}


def _column(lake: Lake, spec: TableSpec, dataset: Dataset) -> np.ndarray:
    """`user_id` (N,) of the rows of the log's span."""
    return lake.read(spec, ["user_id"], dataset.start, dataset.end)["user_id"].to_numpy()


def _visit_sums(lake: Lake, dataset: Dataset, viewers_U: np.ndarray) -> dict[str, Sums]:
    """Returns, days active, and hours between visits."""
    nothing = np.zeros(len(viewers_U))
    if not lake.exists(SESSIONS):
        return {
            key: Sums(nothing, nothing)
            for key in (*(f"return_{days}" for days in RETURN_DAYS), "days_active", "hours_between")
        }
    table = lake.read(SESSIONS, ["user_id", "started_at", "ended_at"], dataset.start, dataset.end)
    user_S, started_S, ended_S = (table[name].to_numpy() for name in ("user_id", "started_at", "ended_at"))
    at_S, known_S = _places(viewers_U, user_S)
    order = np.lexsort((started_S[known_S], at_S[known_S]))
    at_S, started_S, ended_S = (column[known_S][order] for column in (at_S, started_S, ended_S))
    again_S = np.concatenate([at_S[1:] == at_S[:-1], [False]]) if len(at_S) else np.zeros(0, bool)
    gap_S = np.where(again_S, np.concatenate([started_S[1:], [0]]) - ended_S, 0) if len(at_S) else np.zeros(0)
    count = len(viewers_U)
    found = {}
    for days in RETURN_DAYS:
        closed_S = ended_S + days * DAY <= dataset.end
        back_S = closed_S & again_S & (gap_S <= days * DAY)
        found[f"return_{days}"] = Sums(np.bincount(at_S, back_S, count), np.bincount(at_S, closed_S, count))
    days_U = (
        np.bincount(np.unique(np.stack([at_S, started_S // DAY]), axis=1)[0], minlength=count) if len(at_S) else nothing
    )
    here_U = dataset.end - np.maximum(dataset.start, _registered(lake, viewers_U))
    found["days_active"] = Sums(days_U, np.where(days_U > 0, np.maximum(here_U, DAY) / _WEEK, 0.0))
    found["hours_between"] = Sums(
        np.bincount(at_S, np.maximum(gap_S, 0) / HOUR, count), np.bincount(at_S, again_S, count)
    )
    return found


def _registered(lake: Lake, viewers_U: np.ndarray) -> np.ndarray:
    users = lake.read(USERS, ["user_id", "registered_at"])
    registered_U = np.zeros(len(viewers_U), np.int64)
    at_N, known_N = _places(viewers_U, users["user_id"].to_numpy())
    registered_U[at_N[known_N]] = users["registered_at"].to_numpy()[known_N]
    return registered_U


def _tie_sums(lake: Lake, dataset: Dataset, viewers_U: np.ndarray) -> dict[str, Sums]:
    """Ties that stood when the log began: those with contact or an end in the log, and of them those that got weaker."""
    nothing = np.zeros(len(viewers_U))
    if not lake.exists(FRIENDSHIPS):
        return {"weaker_ties": Sums(nothing, nothing)}
    ties = lake.read(FRIENDSHIPS, ["user_id", "friend_id", "since", "ended_at"])
    ended_N = pc.fill_null(ties["ended_at"], np.iinfo(np.int64).max).to_numpy()
    stood = (ties["since"].to_numpy() <= dataset.start) & (ended_N > dataset.start)
    actions = lake.read(ACTIONS, ["user_id", "author_id", "kind", "occurred_at"], dataset.start, dataset.end)
    actions = actions.filter(pc.is_in(actions["kind"], pa.array(CONTACTS)))
    one = np.concatenate([ties["user_id"].to_numpy()[stood], actions["user_id"].to_numpy()])
    other = np.concatenate([ties["friend_id"].to_numpy()[stood], actions["author_id"].to_numpy()])
    ids, index = np.unique(np.concatenate([one, other]), return_inverse=True)
    pairs, code = np.unique(index[: len(one)] * max(len(ids), 1) + index[len(one) :], return_inverse=True)
    count = int(stood.sum())
    tie_P = np.zeros(len(pairs), bool)
    tie_P[code[:count]] = True
    # An edge whose kind changed is two rows; the tie lasts as long as any of them.
    last_P = np.zeros(len(pairs), np.int64)
    np.maximum.at(last_P, code[:count], ended_N[stood])
    late_J = actions["occurred_at"].to_numpy() >= (dataset.start + dataset.end) // 2
    early_P, later_P = (np.bincount(code[count:], mask, len(pairs)) for mask in (~late_J, late_J))
    over_P = last_P < dataset.end
    counted_P = tie_P & (over_P | (early_P + later_P > 0))
    weaker_P = counted_P & (over_P | (later_P < early_P))
    at_P, known_P = _places(viewers_U, ids[pairs // max(len(ids), 1)])
    at_P = at_P[known_P]
    return {
        "weaker_ties": Sums(
            np.bincount(at_P, weaker_P[known_P], len(viewers_U)), np.bincount(at_P, counted_P[known_P], len(viewers_U))
        )
    }


def _counted(viewers_U: np.ndarray, ids_N: np.ndarray) -> np.ndarray:
    at_N, known_N = _places(viewers_U, ids_N)
    return np.bincount(at_N[known_N], minlength=len(viewers_U))


def _places(viewers_U: np.ndarray, ids_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index (N,) of each id in `viewers_U`, and whether it is there."""
    at_N = np.minimum(np.searchsorted(viewers_U, ids_N), max(len(viewers_U) - 1, 0))
    return at_N, viewers_U[at_N] == ids_N if len(viewers_U) else np.zeros(len(ids_N), bool)
