"""Collects each module of suites once for each of its backends.

The ids of its tests are such as
``tests/suites/reading.py::mariadb::Get::test_one``, and may be given to
pytest up to any ``::``.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.models.backends import On
from tests.servers.in_loop import InLoop
from tests.servers.kinds import KINDS
from tests.suite_table import CORE, SUITES

#: Kinds of servers, in the order of a summary.
SERVERS = (*KINDS, "mariadb11")


class SuiteFile(pytest.File):
    """A module of suites."""

    def collect(self) -> Iterator[pytest.Collector]:
        self.obj = importlib.import_module(f"tests.suites.{self.path.stem}")
        # For the file, before its first backend would have them alone.
        self.session._fixturemanager.parsefactories(self)
        tier = self.config.getoption("--tier")
        for on in backends_of(self.path.stem, tier):
            node = OnBackend.from_parent(self, path=self.path, name=on.name)
            node.on = on
            if on.live:
                node.add_marker("live")
            yield node


class OnBackend(pytest.Module):
    """The suites of a module on one backend."""

    on: On

    def __init__(self, *, name: str, parent: Any, path: Path, **_: Any):
        # As that of a class, not of a file: the id has the name, too.
        pytest.Collector.__init__(self, name=name, parent=parent, path=path)

    def _getobj(self) -> ModuleType:
        return importlib.import_module(f"tests.suites.{self.path.stem}")

    def collect(self) -> Iterator[pytest.Collector]:
        only = self.on.only.split()
        for name, found in vars(self.obj).items():
            if _is_suite(self.obj, found) and (not only or name in only):
                start = f"{name}."
                values = {
                    key.removeprefix(start): value
                    for key, value in self.on.values.items()
                    if key.startswith(start)
                }
                node = pytest.Class.from_parent(self, name=name)
                if values:
                    # from_parent() ignores its obj= and takes the attribute
                    # of the module, which has other values.
                    node.obj = type(name, (found,), values)
                yield node


def _is_suite(module: ModuleType, found: Any) -> bool:
    return (
        isinstance(found, type)
        and found.__module__ == module.__name__
        and any(name.startswith("test_") for name in dir(found))
    )


def backends_of(name: str, tier: str) -> Sequence[On]:
    """Return the backends of a module of suites in a tier.

    ``all`` has each that the table lists, and the same of MySQL for each of
    MariaDB, except that an asynchronous driver has one of the two, MySQL for
    the core, and mysqlclient MariaDB.  The core suites run on MariaDB 11.8,
    too.  Both MariaDBs try as few random values as smaller runs, and others
    than MySQL.  ``test`` takes the one that matters, and MySQL for the core.
    Those of ``check`` and ``pythons`` need no server.
    """
    plain = [on for on in SUITES[name] if not on.live]
    live = [on for on in SUITES[name] if on.live]
    mysql = [on.on_kind("mysql") for on in live if "driver" not in on.options]
    mariadb = [on.smaller() for on in live]
    if tier == "all":
        without = "mariadb" if name in CORE else "mysql"
        newer = [on.on_kind("mariadb11") for on in mariadb[:1] if name in CORE]
        every = (*plain, *mariadb, *mysql, *newer)
        return [on for on in every if not on.in_loop or on.kind != without]
    if tier == "test" and live:
        core = mysql[:1] if name in CORE else []
        return [on.smaller() for on in (*live[:1], *core)]
    return [on.smaller() for on in plain if on.name == "sqlite"]


def is_suite(path: Path) -> bool:
    """Return whether a file is a module of ``SUITES``."""
    return path.parent.name == "suites" and path.stem in SUITES


def server_of(item: pytest.Item) -> str:
    """Return the kind of server that a test runs on; empty for none."""
    backend = item.getparent(OnBackend)
    if backend is not None:
        return backend.on.kind
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "server_kind" in callspec.params:
        return str(callspec.params["server_kind"])
    names: Sequence[str] = getattr(item, "fixturenames", ())
    found = [name for name in SERVERS if f"{name}_installed" in names]
    return found[0] if found else ""


def run_in_loop(item: pytest.Function) -> bool | None:
    """Run a test whose cluster is one of an event loop."""
    cluster = item.funcargs.get("cluster")
    if not isinstance(cluster, InLoop):
        return None
    names = item._fixtureinfo.argnames
    arguments = {name: item.funcargs[name] for name in names}
    asyncio.run(cluster.run(item.obj, arguments))
    return True
