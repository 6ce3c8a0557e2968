"""The command line: every verb of feedloop. `feedloop VERB --help` explains itself."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from feedloop.console import fail_usage
from feedloop.verbs.data import features_verb, samples_verb, simulate_verb
from feedloop.verbs.demo import demo_verb
from feedloop.verbs.ingest import ingest_verb
from feedloop.verbs.machine import doctor_verb
from feedloop.verbs.models import train_verb
from feedloop.verbs.plan import plan_verb
from feedloop.verbs.policies import publish_verb, replay_verb, rollback_verb, serve_verb, stop_verb, update_verb


class _Verbs(click.Group):
    """A group whose usage errors are one sentence too, and with `--json` one JSON object, like all others."""

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(given, **{**options, "standalone_mode": False})
        except click.ClickException as error:
            fail_usage(error, "--json" in given)
        except click.Abort:
            raise SystemExit(130) from None
        raise SystemExit(code if isinstance(code, int) else 0)


@click.group(cls=_Verbs)
def main() -> None:
    """A friend-feed recommender: logs in, feed out, and the feed's own log starts the next turn.

    Exit codes: 0 done; 2 bad input, one clear sentence, nothing written; 1 anything else.
    """


for command in (demo_verb, ingest_verb, simulate_verb, features_verb, samples_verb, train_verb, replay_verb, publish_verb,
                update_verb, rollback_verb, serve_verb, stop_verb, plan_verb, doctor_verb):  # fmt: skip
    main.add_command(command)
