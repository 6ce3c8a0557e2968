"""How often people act, by how close they are: each task's level and its slope with tie strength, by simulated worlds.

A tie is hidden in a log. What stands for it is the friendship and the decayed contacts of the pair before the impression
(`simulator.likeness.ties`). Worlds are simulated with all that was fitted before, and in each the level and the slope are
sought that give its impressions the log's rates in three groups: no friendship, friends with few contacts, friends with
many. In a simulated world ties are known, so each act counts exp(level + slope x tie ** 1.2) times what it did.

Shapes: A tasks, G groups, R worlds, I impressions, J acts.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from contracts.errors import BadInput
from contracts.files import hash_value
from contracts.progress import say
from contracts.tasks import TASK_NAMES
from simulator.environment import EnvironmentSettings
from simulator.likeness.estimates import Fit, among_worlds
from simulator.likeness.log import Impressions, LoggedLog
from simulator.likeness.ties import contact_groups
from simulator.likeness.worlds import world_of

GROUP_OF_CONTACTS = np.array([0, 1, 1, 2, 2])
GROUPS = 3
FEWEST_ACTS = 40
FEWEST_IN_A_GROUP = 12
CLOSENESS_POWER = 1.2
SLOPES = (-4.0, 4.0)


@dataclass(frozen=True)
class Rates:
    """Acts (A, G) and looks (G,) of a log by group of pairs."""

    acts_AG: np.ndarray
    looks_G: np.ndarray


@dataclass(frozen=True)
class World:
    """A simulated world: its rates, and the group and closeness of every act (J,), task by task."""

    settings: EnvironmentSettings
    rates: Rates
    group_AJ: list[np.ndarray]
    close_AJ: list[np.ndarray]


def rates_by_tie(shown: Impressions, group_I: np.ndarray, looked_I: np.ndarray) -> Rates:
    """Acts and looks by group (I,) of the pair, on the impressions that were `looked_I` at."""
    acts_AG = np.stack([np.bincount(group_I[looked_I], acted_I[looked_I], GROUPS) for acted_I in shown.acted_IA.T])
    return Rates(acts_AG, np.bincount(group_I[looked_I], minlength=GROUPS))


def fit_levels(log: LoggedLog, settings: EnvironmentSettings, fit: Fit, worlds: int) -> None:
    """Adds a level and a slope per task, from `worlds` simulated worlds (after two that only lead near)."""
    shown = log.impressions
    if shown is None or not shown.acted_IA.any():
        fit.not_fitted["action rates"] = log.absent.get(
            "impressions", log.absent.get("actions", "nobody acted on a post")
        )
        return
    looks_known = "viewed_ms" not in log.absent
    group_I = GROUP_OF_CONTACTS[contact_groups(log, shown)]
    rates = rates_by_tie(shown, group_I, shown.viewed_I)
    tasks = [a for a in range(len(TASK_NAMES)) if rates.acts_AG[a].sum() >= FEWEST_ACTS]
    for a in set(range(len(TASK_NAMES))) - set(tasks):
        fit.not_fitted[f"rate of {TASK_NAMES[a]}"] = (
            f"{int(rates.acts_AG[a].sum())} of them in the log, fewer than {FEWEST_ACTS}"
        )
    sloped = [a for a in tasks if min(rates.acts_AG[a, 0], rates.acts_AG[a, 1:].sum()) >= FEWEST_IN_A_GROUP]
    for a in set(tasks) - set(sloped):
        fit.not_fitted[f"slope of {TASK_NAMES[a]} with tie strength"] = (
            f"fewer than {FEWEST_IN_A_GROUP} of them among friends, or among others"
        )
    fit.methods["action rates"] = f"matched in {worlds} simulated worlds by friendship and contacts of the pair"
    # Every log has worlds of its own, so that the luck of one set of worlds does not sit in all fits alike.
    first_seed = int(hash_value(log.parents)[:8], 16)
    matched_RA2 = np.zeros((0, len(TASK_NAMES), 2))
    for number, seeds in enumerate((range(2), range(2, 2 + worlds))):
        found = []
        for seed in seeds:
            say(f"  simulated world {seed + 1} of {2 + worlds}")
            world = _world(settings.model_copy(update={"seed": first_seed + seed}), looks_known)
            found.append([_match(rates, world, a, a in sloped) for a in range(len(TASK_NAMES))])
        matched_RA2 = np.array(found)
        if number == 0:
            level_A, slope_A = np.exp(matched_RA2[:, :, 0].mean(axis=0)), matched_RA2[:, :, 1].mean(axis=0)
            settings = settings.model_copy(
                update={"task_levels": tuple(level_A.tolist()), "tie_slopes": tuple(slope_A.tolist())}
            )
    for a in tasks:
        level = among_worlds(matched_RA2[:, a, 0], "log", "task_levels", a)
        fit.estimates[f"level of {TASK_NAMES[a]}"] = level.exp("times the default rate")
        if a in sloped:
            fit.estimates[f"slope of {TASK_NAMES[a]} with tie strength"] = among_worlds(
                matched_RA2[:, a, 1], "log rate from no tie to the closest", "tie_slopes", a
            )


def _world(settings: EnvironmentSettings, looks_known: bool) -> World:
    try:
        log, latents = world_of(settings)
    except BadInput as error:
        raise BadInput(
            f"the log is too small for its action rates to be matched: in a simulated world of its size, {error}"
        ) from None
    shown = log.impressions
    assert shown is not None
    group_I = GROUP_OF_CONTACTS[contact_groups(log, shown)]
    looked_I = shown.viewed_I if looks_known else np.ones(len(group_I), bool)
    close_I = latents.ties(shown.viewer_I, log.author_P[shown.post_I])[0] ** CLOSENESS_POWER
    acted_IA = shown.acted_IA & looked_I[:, None]
    return World(settings, rates_by_tie(shown, group_I, looked_I), [group_I[acted_I] for acted_I in acted_IA.T],
                 [close_I[acted_I] for acted_I in acted_IA.T])  # fmt: skip


def _match(rates: Rates, world: World, task: int, sloped: bool) -> tuple[float, float]:
    """Log level and slope with which the world's acts of the task come at the log's rates, group by group."""
    now = np.array([np.log(world.settings.task_levels[task]), world.settings.tie_slopes[task]])
    acts_G, group_J, close_J = rates.acts_AG[task], world.group_AJ[task], world.close_AJ[task]
    used_G = (acts_G > 0) & (world.rates.acts_AG[task] > 0)
    if acts_G.sum() < FEWEST_ACTS or not used_G.any():
        return 0.0, 0.0
    target_G = np.log(acts_G[used_G] / rates.looks_G[used_G])
    certain_G = np.sqrt(1.0 / (1.0 / acts_G + 1.0 / np.maximum(world.rates.acts_AG[task], 1))[used_G])

    def off(step: np.ndarray) -> np.ndarray:
        weight_J = np.exp(step[0] + (step[1] if sloped else 0.0) * close_J)
        acts = np.bincount(group_J, weight_J, GROUPS)[used_G]
        return (np.log(acts / world.rates.looks_G[used_G]) - target_G) * certain_G

    step = least_squares(off, np.zeros(2) if sloped else np.zeros(1), method="trf").x
    slope = float(np.clip(now[1] + step[1], *SLOPES)) if sloped else 0.0
    return float(now[0] + step[0]), slope
