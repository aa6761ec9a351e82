"""``sqla-shard explain``."""

from __future__ import annotations

import re
from typing import Any

import click

from sqla_shard.cli.expressions import evaluate
from sqla_shard.cli.expressions import models_option
from sqla_shard.cli.expressions import names
from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import number
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings

__all__ = ["explain_command"]

_NUMERIC = re.compile(r"[0-9]\w*")


@click.command(
    "explain",
    epilog=examples(
        "sqla-shard explain 241294492511762325",
        "sqla-shard explain --models shop.models \\",
        '    "select(Pin).where(Pin.board_id == 241294492511762325)"',
        "sqla-shard explain --models shop.models \\",
        '    "select(func.count(Pin.id)).options(scatter())"',
    ),
)
@click.argument("what")
@models_option
@json_option
@pass_settings
def explain_command(
    settings: Settings, what: str, models: tuple[str, ...], as_json: bool
) -> None:
    """Tell where an id or a statement goes, and why.

    Nothing is sent, and no password is needed.

    WHAT is an id, decimal or hexadecimal after 0x, or a statement as a
    Python expression.  It can use the public names of SQLAlchemy, its ORM
    and sqla_shard, and those of the modules in --models.  A statement that
    would be refused is explained, too, with status 0.
    """
    subject: Any
    if _NUMERIC.fullmatch(what.strip()):
        subject = number(what.strip())
    else:
        subject = evaluate(what.strip(), names(models))
    with settings.silent_cluster() as cluster:
        found = cluster.explain(subject)
    if as_json:
        print_json(found.to_mapping())
    else:
        echo(str(found))
