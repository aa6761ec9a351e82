"""``sqla-shard id``."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.options import keyspace_option, number, pass_settings, Settings
from sqla_shard.cli.output import data_option, echo, examples, print_data
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout, ObjectId


@click.command(
    "id",
    epilog=examples(
        "sqla-shard id 241294492511762325",
        "sqla-shard id 0x3594010006bf795",
        "sqla-shard id --shard 5 --type 1 --local 7",
        "sqla-shard id -t topology.toml --keyspace photos 2374945115996161",
    ),
)
@click.argument("ids", metavar="[ID]...", nargs=-1, type=number)
@click.option("--shard", metavar="N", type=number, help="Shard of the id to compose.")
@click.option("--type", "type_", metavar="N", type=number, help="Its type.")
@click.option("--local", metavar="N", type=number, help="Its local id.")
@keyspace_option
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
    if ids and parts == (None, None, None):
        layout = _layout(settings, keyspace)
        decoded = [layout.unpack(one) for one in ids]
    elif ids or shard is None or type_ is None or local is None:
        raise click.UsageError(
            "specify either ids to decode, or all of --shard, --type and "
            "--local to compose one"
        )
    else:
        layout = _layout(settings, keyspace)
        decoded = [layout.unpack(layout.pack(shard, type_, local))]
    if as_data:
        print_data([_document(layout, one) for one in decoded])
        return
    for one in decoded:
        echo(_line(one) if ids else str(int(one)))


def _layout(settings: Settings, keyspace: str | None) -> IdLayout:
    """Return the layout of ids, by the topology if one is named."""
    if settings.named is None and keyspace is None:
        return DEFAULT_LAYOUT
    return settings.topology().id_layout(keyspace)


def _document(layout: IdLayout, parts: ObjectId) -> dict[str, Any]:
    return {
        "id": str(int(parts)),
        "hex": hex(int(parts)),
        "shard": parts.shard_id,
        "type": parts.type_id if layout.names_type else None,
        "local": str(parts.local_id),
    }


def _line(parts: ObjectId) -> str:
    return f"{int(parts)} ({int(parts):#x}): {parts.describe()}"
