"""The files that revisions need: alembic.ini, and a folder per keyspace.

Each keyspace has tables of its own, and so revisions of its own.  Alembic's
way for that is a section of alembic.ini for each::

    [alembic]                                 alembic upgrade head
    script_location = %(here)s/migrations/objects
    keyspace = objects

    [main]                                    alembic --name main upgrade head
    script_location = %(here)s/migrations/main
    keyspace = main

With one keyspace ``alembic init -t TEMPLATE migrations`` writes the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from collections.abc import Iterable
from configparser import ConfigParser
from pathlib import Path

from sqla_shard.exc import SchemaSetupError
from sqla_shard.following import is_zookeeper
from sqla_shard.following import load_location
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology import Topology

__all__ = ["init", "template_path"]

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
    """Return the folder to give to ``alembic init -t``, an absolute path."""
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
    """Write alembic.ini, and a folder of revisions for each keyspace.

    The first keyspace of kind ``objects`` is what ``alembic`` works on
    without ``--name``.

    :param directory: the folder of revisions; several keyspaces have one
        each inside of it.
    :param topology: the topology file, or a ``zookeeper://`` URL;
        alembic.ini names it.
    :param keyspaces: those that get revisions; None for all.
    :param config: the file to write.
    :param models: where the tables are, such as ``"myapp.models:Base"`` or
        ``"myapp.tables:metadata"``; None to write it into env.py later.
    :returns: the files that were written.
    :raises SchemaSetupError: when a file is there already, or what was
        given makes no sense; nothing is written then.
    :param placeholders: names that ``${NAME}`` in a URL may have.
    :raises UnknownKeyspaceError: when a keyspace is not in the topology.
    """
    # Nothing is connected to, so no password is needed.
    blank = dict.fromkeys(placeholders, "")
    found = load_location(topology, placeholders=placeholders, environ=blank)
    names = _ordered(found, keyspaces)
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
        raise SchemaSetupError(
            "no keyspace was named; leave keyspaces out for all of them",
            value="keyspaces",
        )
    # Python's sort keeps the order of those that are alike.
    wanted.sort(key=lambda keyspace: keyspace.kind != "objects")
    return list(dict.fromkeys(keyspace.name for keyspace in wanted))


def _check_free(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not any(path.iterdir()):
            continue
        if path.exists():
            raise SchemaSetupError(
                f"{path} is there already and is not overwritten; move it "
                "away, or name another",
                value=str(path),
            )


def _config(
    config: Path,
    topology: str | os.PathLike[str],
    folders: dict[str, Path],
) -> str:
    text = (template_path() / "alembic.ini.mako").read_text(encoding="utf-8")
    sections = []
    for index, (name, folder) in enumerate(folders.items()):
        title = name if index else _FIRST
        sections.append(
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
            raise SchemaSetupError(
                f"keyspace {name!r} would be a section of {config} that "
                "means something else to alembic; call init() for it alone, "
                "with another config",
                value=name,
            )
    return _SECTION.sub(lambda _: "\n".join(sections), text, count=1)


def _here(config: Path, path: Path) -> str:
    """Return a path as alembic.ini says it, seen from its own folder."""
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
        raise SchemaSetupError(
            f"models={models!r} is not of the form module:name, such as "
            "'myapp.models:Base'",
            value=models,
        )
    module, name, path = match.groups()
    metadata = name + path
    if metadata.rpartition(".")[2] != "metadata":
        metadata += ".metadata"
    imported = "from alembic import context\n"
    text = text.replace(imported, f"{imported}from {module} import {name}\n")
    return re.sub(
        r"# Import .*\ntarget_metadata = .*",
        lambda _: f"target_metadata = {metadata}",
        text,
    )
