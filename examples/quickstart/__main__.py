"""The command; see the docstring of the package."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from examples.quickstart.bookmarks import BookmarkError, Folder, read_folders
from examples.quickstart.models import Base
from examples.quickstart.pinboard import check, Deal, import_folders, Stored
from examples.quickstart.progress import Progress
from examples.quickstart.showing import show_explanation, show_objects, show_topology
from sqla_shard import Cluster, FileSource, Topology

EXAMPLES = Path(__file__).parents[1]
NAMES = ("ada", "barbara", "edsger", "grace")


class RefusedError(Exception):
    """Raised before anything is written; the message is for the user."""


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.quickstart",
        description="Import a browser's bookmarks, and see where each object lives.",
    )
    parser.add_argument(
        "bookmarks",
        nargs="?",
        type=Path,
        default=EXAMPLES / "bookmarks.html",
        help="a bookmark export (default: a small one of our own)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        help="directory for SQLite files (default: data); a further run adds to it",
    )
    where.add_argument(
        "--topology",
        type=Path,
        help="servers to use instead, such as examples/topology.mariadb.toml",
    )
    return parser.parse_args(arguments)


def read(path: Path) -> list[Folder]:
    """Return the folders that hold links, in the order of the file.

    :raises RefusedError: when the file is not a whole bookmark export.
    """
    try:
        with path.open("rb") as file:
            folders = sorted(read_folders(file), key=attrgetter("line"))
    except BookmarkError as error:
        raise RefusedError(f"{path}, {error}") from error
    skipped = [entry for folder in folders for entry in folder.skipped]
    filled = [folder for folder in folders if folder.links]
    links = sum(len(folder.links) for folder in filled)
    print(f"{path.name}: {links} links in {len(filled)} folders")
    for entry in sorted(skipped, key=attrgetter("line"))[:5]:
        print(f"  skipped: line {entry.line}, {entry.reason}")
    if len(skipped) > 5:
        print(f"  skipped: {len(skipped) - 5} more")
    return filled


def sqlite_topology(data: Path) -> Topology:
    """Return our topology for SQLite, its files under another directory.

    :raises RefusedError: when that folder belongs to another program.
    """
    source = FileSource(EXAMPLES / "topology.sqlite.toml")
    document = source.load().to_mapping()
    ours = set()
    for keyspace in document["keyspaces"].values():
        for server in keyspace["servers"]:
            ours.add(server["name"])
            server["primary"] = f"sqlite:///{data / server['name']}"
    found = {path.name for path in data.iterdir()} if data.exists() else set()
    others = found - ours
    if others:
        raise RefusedError(
            f"{data} holds {min(others)!r}, which is not the quickstart's; "
            "choose another directory with --data"
        )
    return Topology.from_mapping(document, source=str(source.path))


def store(cluster: Cluster, folders: Sequence[Folder]) -> list[Stored]:
    """Import everything, with a progress bar."""
    cluster.create_all(Base.metadata)
    imported = []
    total = sum(len(folder.links) for folder in folders)
    try:
        with Progress("importing", total) as progress:
            for stored in import_folders(cluster, folders, NAMES):
                imported.append(stored)
                progress.advance(len(stored.pin_ids))
    except SQLAlchemyError:
        state = f"{len(imported)} of {len(folders)} boards are stored"
        print(f"stopped: {state}, each with all its pins", file=sys.stderr)
        raise
    return imported


def run(chosen: argparse.Namespace) -> None:
    """Read, import, read back, and explain.

    :raises RefusedError: when nothing was written.
    """
    folders = read(chosen.bookmarks)
    if chosen.topology is None:
        topology = sqlite_topology(chosen.data)
    else:
        topology = FileSource(chosen.topology).load()
    if not folders:
        raise RefusedError(f"{chosen.bookmarks} has no links to import")
    show_topology(topology)
    with Cluster.from_topology(topology, placement=Deal()) as cluster:
        imported = store(cluster, folders)
    # Another cluster, as in another process: nothing is in memory.
    with Cluster.from_topology(topology) as cluster:
        check(cluster, imported)
        show_objects(cluster, imported)
        show_explanation(cluster, imported)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    chosen = options(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A title must not end the program on a terminal that lacks a letter.
        sys.stdout.reconfigure(errors="replace")
    try:
        run(chosen)
    except RefusedError as error:
        print(f"refused: {error}\nNothing was written.", file=sys.stderr)
        return 1
    except (ModuleNotFoundError, OSError, SQLAlchemyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
