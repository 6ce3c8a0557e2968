"""Simulated worlds that are looked at once: drawn, lived and read in memory, with no file."""

import numpy as np
import pyarrow as pa

from contracts.lake import TableManifest, conform
from contracts.tables import TableSpec
from simulator.environment.behaviour import Latents
from simulator.environment.settings import EnvironmentSettings
from simulator.environment.simulate import dataset_of, draw, live
from simulator.likeness.log import READ, LoggedLog, log_of


class Kept:
    """Takes the tables that a fit reads, by name."""

    def __init__(self) -> None:
        self.tables: dict[str, pa.Table] = {}

    def write(self, spec: TableSpec, table: pa.Table, *, keep_other_days: bool = False) -> TableManifest:
        """Adds rows of further days, or replaces the table; its manifest counts rows alone."""
        if spec in READ:
            before = [self.tables[spec.name]] if keep_other_days else []
            self.tables[spec.name] = pa.concat_tables([*before, conform(table, spec)])
        return TableManifest(spec.name, table.num_rows, "", "", {}, {})


def world_of(settings: EnvironmentSettings) -> tuple[LoggedLog, Latents]:
    """The log that `simulate` would write with these settings, as it would be read, and its hidden quantities."""
    settings.check()
    rng, kept = np.random.default_rng(settings.seed), Kept()
    lived = live(rng, kept, settings, draw(rng, settings))
    log = log_of(kept.tables, dataset_of(settings, lived, {}), {}, "a simulated world")
    return log, lived.latents
