"""``sqla-shard id``, ``where`` and ``explain``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TYPE_CHECKING

import click

from sqla_shard.cli.options import (
    completed,
    evaluate,
    ids_keyspace_option,
    models_option,
    names,
    number,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import command, data_option, echo, end, option, print_data
from sqla_shard.ids import DEFAULT_LAYOUT

if TYPE_CHECKING:
    from sqla_shard.engine import StatementReport


@command(
    "id",
    "sqla-shard id 241294492511762325",
    "sqla-shard id 0x3594010006bf795",
    "sqla-shard id --shard 5 --type 1 --local 7",
    "sqla-shard id -t topology.toml --keyspace photos 2374945115996161",
)
@click.argument("ids", metavar="[ID]...", nargs=-1, type=number)
@option(
    "--shard N",
    "Shard of the id to compose.",
    number,
    shell_complete=completed("shard"),
)
@option("--type N", "Its type.", number, to="type_")
@option("--local N", "Its local id.", number)
@ids_keyspace_option
@data_option
@pass_settings
def id_command(
    settings: Settings,
    ids: tuple[int, ...],
    shard: int | None,
    type_: int | None,
    local: int | None,
    keyspace: str | None,
    as_data: bool,
) -> None:
    """Decode object ids, or compose an id from its parts.

    ID is decimal, or hexadecimal after 0x.  Without --topology, ids have the
    default layout: 16 bits of the shard, 10 of the type, 36 of the local id.
    With it, they have the layout of their keyspace.  An id that begins with
    the time has the type 0; its local id is the time and the sequence number.
    """
    parts = (shard, type_, local)
    decodes = bool(ids) and parts == (None, None, None)
    if not decodes and (ids or shard is None or type_ is None or local is None):
        raise click.UsageError(
            "specify either ids to decode, or all of --shard, --type and "
            "--local to compose one"
        )
    layout = DEFAULT_LAYOUT
    if settings.named is not None or keyspace is not None:
        layout = settings.topology().id_layout(keyspace)
    composed = () if decodes else (layout.pack(*parts),)  # type: ignore[arg-type]  # none of them is None
    decoded = [layout.unpack(one) for one in ids or composed]
    if as_data:
        print_data(
            [
                {
                    "id": str(int(one)),
                    "hex": hex(int(one)),
                    "shard": one.shard_id,
                    "type": one.type_id if layout.names_type else None,
                    "local": str(one.local_id),
                }
                for one in decoded
            ]
        )
        return
    for one in decoded:
        text = f"{int(one)} ({int(one):#x}): {one.describe()}"
        echo(text if ids else int(one))


@command(
    "where",
    "sqla-shard where 241294492511762325",
    "sqla-shard where 0x1401000000007 --json",
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=number)
@ids_keyspace_option
@data_option
@pass_settings
def where_command(
    settings: Settings, ids: tuple[int, ...], keyspace: str | None, as_data: bool
) -> None:
    """Show the server and the database of objects.

    Only the topology is read; the objects need not exist.
    """
    from sqla_shard.topology import find_object

    topology = settings.topology()
    found = [find_object(topology, one, keyspace) for one in ids]
    if as_data:
        print_data([one.as_dict() for one in found])
        return
    for object_id, one in zip(ids, found, strict=True):
        echo(f"{object_id}: {one}")


_NUMERIC = re.compile(r"[0-9]\w*")


@command(
    "explain",
    "sqla-shard explain 241294492511762325",
    "sqla-shard explain --models shop.models \\",
    '    "select(Pin).where(Pin.board_id == 241294492511762325)"',
    "sqla-shard explain --models shop.models \\",
    '    "select(func.count(Pin.id)).options(scatter())"',
)
@click.argument("what")
@models_option
@ids_keyspace_option
@option("--full", "List each shard, and show the whole statement for each server.")
@option(
    "--analyze",
    "Also execute the SELECT, in read-only transactions, and show the "
    "time of each server.",
)
@data_option
@pass_settings
def explain_command(
    settings: Settings,
    what: str,
    models: tuple[str, ...],
    keyspace: str | None,
    full: bool,
    analyze: bool,
    as_data: bool,
) -> None:
    """Explain which shards an id or a statement is routed to, and why.

    Without --analyze no server is contacted, and no password is needed.

    WHAT is an id, decimal or hexadecimal after 0x, or a statement as a
    Python expression, which can use the public names of sqlalchemy,
    sqlalchemy.orm, sqla_shard and the modules in --models.  A statement that
    would be refused is explained as well, with status 0; with --analyze, 1.
    """
    subject: Any
    if _NUMERIC.fullmatch(what.strip()):
        subject = number(what.strip())
    else:
        subject = evaluate(what.strip(), names(models))
    with settings.silent_cluster() as cluster:
        found = cluster.explain(subject, keyspace=keyspace)
    reports: list[StatementReport] = []
    if analyze:
        _check_analyzable(subject)
        if found.refusal is None:
            reports = _executed(settings, subject)
    if as_data:
        print_data(
            {**found.as_dict(), "analyzed": [*map(_document, reports)]}
            if analyze
            else found.as_dict()
        )
    else:
        echo(found.text(full=full))
        for report in reports:
            echo("\n".join(_analyzed_lines(report)))
    end(is_good=not analyze or found.refusal is None, is_read=True)


def _check_analyzable(subject: Any) -> None:
    """Refuse what is no SELECT, or one that locks rows.

    :raises click.UsageError: if so.
    """
    from sqla_shard.util import sqlalchemy_private as private

    if not getattr(subject, "is_select", False):
        raise click.UsageError("--analyze executes SELECT statements only")
    if private.for_update_arg(subject) is not None:
        raise click.UsageError("--analyze executes no SELECT ... FOR UPDATE")


def _executed(settings: Settings, statement: Any) -> list[StatementReport]:
    """Execute a SELECT, and return the reports of what was sent."""
    from sqlalchemy import event

    from sqla_shard.cli.shells import refuse_writes

    reports: list[StatementReport] = []
    with settings.cluster() as cluster:
        for _, place in cluster.places.servers():
            refuse_writes(place.engine)
        # The time to connect is not that of the statement.
        cluster.warm()
        event.listen(
            cluster, "after_statement", lambda cluster, report: reports.append(report)
        )
        with cluster.session() as session:
            session.execute(statement).all()
    return reports


def _document(report: StatementReport) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "seconds": report.seconds,
        "servers": [
            {
                "server": one.server,
                "shards": list(one.shards),
                "rows": one.rows,
                "seconds": one.seconds,
            }
            for one in report.servers
        ],
    }


def _analyzed_lines(report: StatementReport) -> Iterator[str]:
    """Yield a line for the statement, and one for each server."""
    from sqla_shard.topology.keyspaces import as_ranges

    rows = "" if report.rows is None else f"{report.rows:,} rows in "
    yield f"executed: {rows}{report.seconds * 1000:.1f} ms"
    for one in report.servers:
        rows = "" if one.rows is None else f", {one.rows:,} rows"
        yield (
            f"  {one.server}: {one.seconds * 1000:.1f} ms{rows}, shards "
            f"{as_ranges(one.shards)}"
        )
