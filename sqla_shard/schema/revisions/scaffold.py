"""The files that revisions need: alembic.ini, and a directory per keyspace.

Each keyspace has its own tables and revisions, and so its own section of
alembic.ini::

    [alembic]                                 alembic upgrade head
    script_location = %(here)s/migrations/objects
    keyspace = objects

    [main]                                    alembic --name main upgrade head
    script_location = %(here)s/migrations/main
    keyspace = main

For a single keyspace ``alembic init -t TEMPLATE migrations`` writes the same
files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from configparser import ConfigParser
from pathlib import Path

from sqla_shard.exc import SchemaError
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, Topology
from sqla_shard.topology.follow import is_zookeeper, load_location

_FIRST = "alembic"
_SECTION = re.compile(r"\[alembic\]\n(?:.+\n)*")
_PORTABLE = """\
# Plain revisions for MySQL or MariaDB; with true they run on SQLite as well.
# portable = true
"""
_MODELS = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)((?:\.\w+)*)")
_ENV = "env.py"
_COPIED = (_ENV, "script.py.mako", "README")


def template_path() -> Path:
    """Return the absolute path of the directory for ``alembic init -t``."""
    return Path(__file__).resolve().parent / "templates" / "sharded"


def init(
    directory: str | Path,
    *,
    topology: str | Path,
    keyspaces: Iterable[str] | None = None,
    config: str | Path = "alembic.ini",
    models: str | None = None,
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
) -> list[Path]:
    """Write alembic.ini, and a directory of revisions for each keyspace.

    Without ``--name``, ``alembic`` uses the first keyspace of kind
    ``objects``.

    :param directory: the directory of revisions; for several keyspaces,
        one subdirectory each.
    :param topology: the topology file, or a ``zookeeper://`` URL, for
        alembic.ini.
    :param keyspaces: names of keyspaces; None for all.
    :param config: path of alembic.ini.
    :param models: the metadata for env.py, such as ``"myapp.models:Base"`` or
        ``"myapp.tables:metadata"``; None to edit env.py later.
    :param placeholders: names of placeholders ``${NAME}`` in URLs.
    :returns: the files that were written.
    :raises SchemaError: if a file already exists, or an argument is
        invalid; nothing was written.
    :raises UnknownKeyspaceError: if a keyspace is not in the topology.
    """
    # No password is needed, since nothing connects to a server.
    blank = dict.fromkeys(placeholders, "")
    topology_there = load_location(topology, placeholders=placeholders, environ=blank)
    names = _ordered(topology_there, keyspaces)
    config, base = Path(config), Path(directory)
    folders = {name: base / name if names[1:] else base for name in names}
    texts = {config: _config(config, topology, folders)}
    template = template_path()
    for folder in folders.values():
        for name in _COPIED:
            text = (template / name).read_text(encoding="utf-8")
            if name == _ENV and models is not None:
                text = _with_models(text, models)
            texts[folder / name] = text
    _check_free([config, *folders.values()])
    for folder in folders.values():
        (folder / "versions").mkdir(parents=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _ordered(topology: Topology, chosen: Iterable[str] | None) -> list[str]:
    wanted = [
        topology.keyspace(name)
        for name in (topology.keyspaces if chosen is None else chosen)
    ]
    if not wanted:
        raise SchemaError("keyspaces is empty; leave it out for all keyspaces")
    wanted.sort(key=lambda keyspace: keyspace.kind != "objects")
    return list(dict.fromkeys(keyspace.name for keyspace in wanted))


def _check_free(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not any(path.iterdir()):
            continue
        if path.exists():
            raise SchemaError(
                f"{path} already exists and is not overwritten; move it, or "
                "choose another path"
            )


def _config(
    config: Path, topology: str | os.PathLike[str], folders: dict[str, Path]
) -> str:
    text = (template_path() / "alembic.ini.mako").read_text(encoding="utf-8")
    sections = []
    for index, (name, folder) in enumerate(folders.items()):
        title, option = (
            (name, f"--name {name}") if index else (_FIRST, "without --name")
        )
        sections.append(
            f"# Keyspace {name}: alembic {option}\n"
            f"[{title}]\n"
            f"script_location = {_here(config, folder)}\n"
            "prepend_sys_path = .\n"
            "path_separator = os\n"
            f"topology = {_location(config, topology)}\n"
            f"keyspace = {name}\n"
            f"{_PORTABLE}"
        )
    taken = ConfigParser(interpolation=None)
    taken.read_string(text)
    for name in list(folders)[1:]:
        if taken.has_section(name) or name == taken.default_section:
            raise SchemaError(
                f"keyspace {name!r} has the name of a section of {config} "
                "that alembic uses otherwise; call init() for this keyspace "
                "alone, with another config"
            )
    return _SECTION.sub(lambda _: "\n".join(sections), text, count=1)


def _here(config: Path, path: Path) -> str:
    """Return a path relative to the directory of alembic.ini."""
    folder = config.absolute().parent
    relative = Path(os.path.relpath(path.absolute(), folder)).as_posix()
    return "%(here)s/" + relative.replace("%", "%%")


def _location(config: Path, topology: str | os.PathLike[str]) -> str:
    if is_zookeeper(topology):
        return os.fspath(topology).replace("%", "%%")
    return _here(config, Path(topology))


def _with_models(text: str, models: str) -> str:
    match = _MODELS.fullmatch(models)
    if match is None:
        raise SchemaError(
            f"models={models!r} must have the form module:name, such as "
            "'myapp.models:Base'"
        )
    module, name, path = match.groups()
    metadata = name + path
    if metadata.rpartition(".")[2] != "metadata":
        metadata += ".metadata"
    return re.sub(
        r"# Import .*\ntarget_metadata = .*",
        lambda _: f"from {module} import {name}\n\ntarget_metadata = {metadata}",
        text,
    )
