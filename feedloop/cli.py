"""The command line: every verb of feedloop. `feedloop VERB --help` explains itself."""

import click

from feedloop.verbs.data import features_verb, ingest_verb, samples_verb, simulate_verb
from feedloop.verbs.demo import demo_verb
from feedloop.verbs.machine import doctor_verb
from feedloop.verbs.models import train_verb
from feedloop.verbs.plan import plan_verb
from feedloop.verbs.policies import publish_verb, replay_verb, rollback_verb, serve_verb, update_verb


@click.group()
def main() -> None:
    """A friend-feed recommender: logs in, feed out, and the feed's own log starts the next turn.

    Exit codes: 0 done; 2 bad input, one clear sentence, nothing written; 1 anything else.
    """


for command in (demo_verb, ingest_verb, simulate_verb, features_verb, samples_verb, train_verb, replay_verb, publish_verb,
                update_verb, rollback_verb, serve_verb, plan_verb, doctor_verb):  # fmt: skip
    main.add_command(command)
