"""Shadow mode of :mod:`sqla_shard.migrate` in a pytest run.

It is off by default.  With a declaration and the metadata of the application,
it plans the statements of all tests, and prints a summary at the end::

    [tool.pytest.ini_options]
    sqla_shard_shadow = "declaration.toml"
    sqla_shard_shadow_metadata = "shop.models:Base"
    sqla_shard_shadow_reports = "shadow-reports"

The reports, one of each process of pytest-xdist, are in the directory
``sqla_shard_shadow_reports`` (``.sqla_shard_shadow``); ``sqla-shard migrate
shadow`` shows them, and ``sqla-shard migrate suggest`` reads them.  The
command line option ``--sqla-shard-shadow DECLARATION`` replaces the first of
these settings; an empty one switches it off.

The reports of an earlier run in the directory are deleted.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Imported for type checking only: pytest imports this plugin in every
    # project whose environment has this package.
    from sqla_shard.migrate import Shadow

__all__ = ["ShadowHooks", "add_shadow_options"]


def add_shadow_options(parser: pytest.Parser) -> None:
    """Add the options of shadow mode."""
    parser.getgroup("sqla_shard").addoption(
        "--sqla-shard-shadow",
        metavar="DECLARATION",
        help="plan the statements of the application by this declaration, as "
        "if it were sharded",
    )
    parser.addini(
        "sqla_shard_shadow",
        "declaration (TOML) to plan the statements of the application by",
        default="",
    )
    parser.addini(
        "sqla_shard_shadow_metadata",
        "the tables of the application, as module:Base",
        default="",
    )
    parser.addini(
        "sqla_shard_shadow_reports",
        "directory for reports of shadow mode",
        default=".sqla_shard_shadow",
    )


class ShadowHooks:
    """Watches all engines from the end of the collection to that of the run.

    The modules of the application are imported by then.
    """

    def __init__(self, config: pytest.Config) -> None:
        given = config.getoption("--sqla-shard-shadow")
        self._declaration = str(
            config.getini("sqla_shard_shadow") if given is None else given
        )
        self._metadata = str(config.getini("sqla_shard_shadow_metadata"))
        self._root = Path(config.rootpath)
        self._directory = self._root / str(config.getini("sqla_shard_shadow_reports"))
        self._is_worker = hasattr(config, "workerinput")
        self._shadow: Shadow | None = None
        if self._declaration and not self._metadata:
            raise pytest.UsageError(
                "sqla_shard_shadow needs sqla_shard_shadow_metadata, the "
                "tables of the application, such as shop.models:Base"
            )

    def pytest_sessionstart(self) -> None:
        """Delete the reports of an earlier run."""
        if self._declaration and not self._is_worker:
            for path in self._directory.glob("shadow-*.json"):
                path.unlink()

    def pytest_collection_finish(self) -> None:
        """Start to watch."""
        if not self._declaration:
            return
        from sqlalchemy import Engine

        from sqla_shard.migrate import Declaration, Shadow

        module, _, name = self._metadata.partition(":")
        found = getattr(importlib.import_module(module), name or "Base")
        self._shadow = Shadow(
            Declaration.from_file(self._root / self._declaration),
            getattr(found, "metadata", found),
            budget=None,
            directory=self._directory,
        )
        self._shadow.watch(Engine)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Stop watching, and write the report."""
        if self._shadow is not None:
            self._shadow.close()

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print the counts of all processes."""
        if not self._declaration:
            return
        from sqla_shard.migrate import load, merge

        paths = sorted(self._directory.glob("shadow-*.json"))
        report = merge(load(path) for path in paths)
        terminalreporter.section("sqla_shard shadow mode")
        terminalreporter.write_line(report.summary())
        terminalreporter.write_line(
            f"Lines and remedies: sqla-shard migrate shadow {self._directory}"
        )
