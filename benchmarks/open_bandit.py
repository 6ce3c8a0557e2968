"""The Open Bandit sample as logged data: two logging policies, three campaigns (Saito et al. 2021).

Shapes: R rounds, A items, K = 3 positions. Every round is one impression at one position, so its log has one column.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from simulator.evaluation import LoggedData, Target

CAMPAIGNS = ("all", "men", "women")
DIRECTIONS = {"random to bts": ("random", "bts"), "bts to random": ("bts", "random")}


@dataclass(frozen=True)
class OpenBanditLog:
    """One campaign's rounds under one policy. `choice_AK`: what the other policy shows at each position; `q_RAK`: predicted
    reward of every item, for the estimators that lean on one; `best_K`: a policy that always shows the same item."""

    item_R: np.ndarray
    position_R: np.ndarray
    click_R: np.ndarray
    propensity_R: np.ndarray
    choice_AK: np.ndarray
    q_RAK: np.ndarray
    best_K: np.ndarray
    on_policy_value: float

    def logged(self) -> LoggedData:
        """The log with its predictions; a viewer of its own for every round, since the sample has no ids of people."""
        rounds = np.arange(len(self.item_R))
        shape = (len(rounds), 1)
        return LoggedData(
            rounds, np.ones(shape, bool), self.item_R[:, None], self.click_R[:, None], self.propensity_R[:, None],
            np.full(len(rounds), len(self.choice_AK)), baseline_RK=self.q_RAK[rounds, self.item_R, self.position_R][:, None],
        )  # fmt: skip

    def target(self) -> Target:
        """The other policy."""
        return self._target(self.choice_AK)

    def fixed_target(self) -> Target:
        """The policy that always shows `best_K`."""
        return self._target((np.arange(len(self.choice_AK))[:, None] == self.best_K).astype(float))

    def _target(self, choice_AK: np.ndarray) -> Target:
        rounds = np.arange(len(self.item_R))
        q_RA = self.q_RAK[rounds, :, self.position_R]
        chosen_RA = choice_AK[:, self.position_R].T
        chosen_R1 = (q_RA * chosen_RA).sum(axis=1, keepdims=True) / chosen_RA.sum(axis=1, keepdims=True)
        return Target(choice_AK[self.item_R, self.position_R][:, None], chosen_R1)


def load(folder: Path, campaign: str, direction: str) -> OpenBanditLog:
    """The sample in `folder` (`obd-sample`), read as `direction`: "random to bts" or "bts to random"."""
    logging, target = DIRECTIONS[direction]
    rows = pd.read_csv(folder / logging / campaign / f"{campaign}.csv")
    other = pd.read_csv(folder / target / campaign / f"{campaign}.csv", usecols=["click"])
    alpha_A, beta_A = beta_prior((folder / "prior_bts.yaml").read_text(), campaign)
    item_R = rows["item_id"].to_numpy()
    position_R = rows["position"].rank(method="dense").to_numpy().astype(int) - 1
    click_R = rows["click"].to_numpy(float)
    items = len(alpha_A)
    choice_AK = thompson_choice(alpha_A, beta_A) if target == "bts" else np.full((items, 3), 1 / items)
    affinity_RA = rows[[f"user-item_affinity_{a}" for a in range(items)]].to_numpy(float)
    cell_R = item_R * 3 + position_R
    clicks, shown = np.bincount(cell_R, click_R, items * 3), np.bincount(cell_R, minlength=items * 3)
    rate_AK = ((clicks + 100 * click_R.mean()) / (shown + 100)).reshape(items, 3)
    q_RAK = rate_AK[None] + 0.0005 * affinity_RA[:, :, None]
    return OpenBanditLog(item_R, position_R, click_R, rows["propensity_score"].to_numpy(float), choice_AK, q_RAK,
                         rate_AK.argmax(axis=0), float(other["click"].mean()))  # fmt: skip


def beta_prior(text: str, campaign: str) -> tuple[np.ndarray, np.ndarray]:
    """Two lists of numbers (A,), `alpha` then `beta`, under the campaign's name: no need of a YAML reader."""
    section = re.split(r"\n(?=\w)", ("\n" + text).split(f"\n{campaign}:\n", 1)[1])[0]
    alpha, beta = (
        np.array([float(line.strip(" -")) for line in part.splitlines() if "- " in line])
        for part in section.split("beta:", 1)
    )
    if len(alpha) != len(beta) or len(alpha) == 0:
        raise ValueError(f"campaign {campaign} has {len(alpha)} alphas and {len(beta)} betas")
    return alpha, beta


def thompson_choice(alpha_A: np.ndarray, beta_A: np.ndarray, draws: int = 100_000) -> np.ndarray:
    """Chance of each item at each of three positions, (A, 3), with the published seed and order of draws."""
    stream = np.random.RandomState(12345)
    count_AK = np.zeros((len(alpha_A), 3))
    for _ in range(10):
        theta_DA = stream.beta(alpha_A, beta_A, size=(draws // 10, len(alpha_A)))
        top_DK = np.argsort(theta_DA, axis=1)[:, ::-1][:, :3]
        for k in range(3):
            count_AK[:, k] += np.bincount(top_DK[:, k], minlength=len(alpha_A))
    return count_AK / draws
