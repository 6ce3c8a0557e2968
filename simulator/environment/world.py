"""The hidden quantities as of the present day: fixed, but for ties that grow with contact and fade without.

Shapes: H records of contact, R actions' edges, A tasks.
"""

from dataclasses import replace

import numpy as np

from contracts.tasks import TASK_NAMES
from simulator.environment.behaviour import DAYS_IN_KEY, Latents, contact_of
from simulator.environment.happened import Log
from simulator.environment.lookups import Graph

CONTACT_A = np.array(
    [{"click": 0.1, "like": 0.5, "comment": 1.0, "share": 0.8, "hide": 0.0}[name] for name in TASK_NAMES]
)
"""What an action adds to the contact of the edge from who acts to whom the post is by; its way back gains half of it."""


class World:
    """`latents` holds for every day up to the present one, and for all earlier ones."""

    def __init__(self, latents: Latents, graph: Graph):
        self.latents, self._graph = latents, graph

    def end_day(self, day: int, log: Log) -> None:
        """Adds the day's contact (of day `day`, from 0) to the ties of the days that follow."""
        latents = self.latents
        if not latents.tie_growth:
            return
        gain_NK = log.acted_NKA @ CONTACT_A
        request_R, position_R = np.nonzero(gain_NK > 0)
        user_R, gain_R = log.user_N[request_R], gain_NK[request_R, position_R]
        author_R = latents.author_P[log.slates_NK[request_R, position_R]]
        edge_R = np.concatenate([self._graph.edge_of(user_R, author_R), self._graph.edge_of(author_R, user_R)])
        gain_R = np.concatenate([gain_R, 0.5 * gain_R])[edge_R >= 0]
        edge_R, of_R = np.unique(edge_R[edge_R >= 0], return_inverse=True)
        if not len(edge_R):
            return
        before_R = contact_of(latents, edge_R, np.full(len(edge_R), day))
        after_R = before_R * 0.5 ** (1.0 / latents.tie_half_life_days) + np.bincount(of_R, gain_R)
        key_H = np.concatenate([latents.contact_key_H, edge_R * DAYS_IN_KEY + day + 1])
        order_H = np.argsort(key_H, kind="stable")
        contact_H = np.concatenate([latents.contact_H, after_R])
        self.latents = replace(latents, contact_key_H=key_H[order_H], contact_H=contact_H[order_H])
