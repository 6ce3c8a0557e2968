"""The formulas of contracts.features in plain numpy, apart from the code under test."""

import numpy as np
import pyarrow as pa

from contracts.events import event_stream
from contracts.features import FAMILIES
from contracts.states import STATES
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS
from contracts.workspace import Workspace


def events_of(workspace: Workspace) -> list[dict]:
    lake = workspace.lake
    return event_stream(lake.read(POSTS), lake.read(IMPRESSIONS), lake.read(ACTIONS)).to_pylist()


def state_of(events: list[dict], family: str, ids: tuple, t: int) -> np.ndarray | None:
    """Counters at t, then latests, of the events known before t; None without any."""
    declared, value, any_event = FAMILIES[family], [], False
    mine = [e for e in events if e["known_at"] < t and tuple(e[name] for name in declared.key) == ids]
    for counter in declared.counters:
        counted = [e for e in mine if e["kind"] in counter.kinds]
        any_event |= bool(counted)
        value.append(sum(2.0 ** (-(t - e["occurred_at"]) / counter.half_life_us) for e in counted))
    for latest in declared.latests:
        value.append(max((float(e["occurred_at"]) for e in mine if e["kind"] in latest.kinds), default=0.0))
    return np.array(value) if any_event else None


def write_states(workspace: Workspace, *moments: int) -> None:
    """The state tables that the Spark job would write, as of `moments` on different UTC days."""
    events = events_of(workspace)
    for name, family in FAMILIES.items():
        kinds = {kind for part in (*family.counters, *family.latests) for kind in part.kinds}
        rows = []
        for moment in moments:
            sums: dict[tuple, np.ndarray] = {}
            for event in events:
                if event["known_at"] >= moment or event["kind"] not in kinds:
                    continue
                ids = tuple(event[column] for column in family.key)
                value = sums.setdefault(ids, np.zeros(family.width))
                for slot, counter in enumerate(family.counters):
                    if event["kind"] in counter.kinds:
                        value[slot] += 2.0 ** (-(moment - event["occurred_at"]) / counter.half_life_us)
                for latest in family.latests:
                    if event["kind"] in latest.kinds:
                        slot = family.slot(latest.name)
                        value[slot] = max(value[slot], event["occurred_at"])
            rows += [(moment, *ids, value.tolist()) for ids, value in sorted(sums.items())]
        columns = zip(*rows) if rows else [[] for _ in STATES[name].schema]
        table = pa.table(
            [pa.array(list(c), f.type) for c, f in zip(columns, STATES[name].schema)], schema=STATES[name].schema
        )
        workspace.features.write(STATES[name], table)
