"""Revisions of one database, generated and run by alembic's own commands.

The env.py here configures alembic with ``comparing(...)`` and nothing else,
so what passes here passes with plain alembic.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, inspect, MetaData

from sqla_shard.schema import comparing, template_path
from sqla_shard.topology import Topology

_ENV = """\
from alembic import context

context.config.attributes["run"](context)
"""


def topology_of(**kinds: str) -> Topology:
    """Return a topology with keyspaces of these names and kinds."""
    server = {"name": "one", "primary": "sqlite:///nowhere"}
    document: dict[str, Any] = {"epoch": 1, "keyspaces": {}}
    for name, kind in kinds.items():
        keyspace: dict[str, Any] = {
            "kind": kind,
            "database": name,
            "servers": [dict(server)],
        }
        if kind != "global":
            keyspace["shards"] = 2
            keyspace["database"] += "{shard:05d}"
            keyspace["servers"][0]["shards"] = [0, 1]
        document["keyspaces"][name] = keyspace
    return Topology.from_mapping(document)


class Revisions:
    """A folder of revisions for one database.

    :param folder: made here.
    :param engine: of the database.
    :param settings: more for ``context.configure()``.
    :ivar path: the revision that was written last.
    """

    path: str

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        topology: Topology,
        *,
        portable: bool = False,
        **settings: Any,
    ) -> None:
        self.portable = portable
        self.settings = settings
        self.engine = engine
        self.topology = topology
        self.folder = folder
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(_ENV)
        template = template_path() / "script.py.mako"
        (folder / "script.py.mako").write_text(template.read_text())

    def generate(self, metadata: MetaData, keyspace: str = "objects") -> str:
        """Return the text of a new revision with the changes."""
        config = self._config(metadata, keyspace)
        script: Any = command.revision(config, "change", autogenerate=True)
        self.path = str(script.path)
        return Path(self.path).read_text(encoding="utf-8")

    def check(self, metadata: MetaData, keyspace: str = "objects") -> None:
        """Run ``alembic check``, which raises where something has changed."""
        command.check(self._config(metadata, keyspace))

    def upgrade(self) -> None:
        command.upgrade(self._config(MetaData(), "objects"), "head")

    def downgrade(self) -> None:
        command.downgrade(self._config(MetaData(), "objects"), "base")

    def sql(self) -> str:
        """Return what ``alembic upgrade head --sql`` prints."""
        config = self._config(MetaData(), "objects")
        command.upgrade(config, "head", sql=True)
        printed: Any = config.output_buffer
        return str(printed.getvalue())

    def _config(self, metadata: MetaData, keyspace: str) -> Config:
        config = Config(output_buffer=io.StringIO(), stdout=io.StringIO())
        config.set_main_option("script_location", str(self.folder))
        config.set_main_option("path_separator", "os")
        options = comparing(
            metadata, keyspace=keyspace, topology=self.topology, portable=self.portable
        )
        options.update(self.settings)
        config.attributes["run"] = lambda context: self._run(context, options)
        return config

    def _run(self, context: Any, options: dict[str, Any]) -> None:
        if context.is_offline_mode():
            name = self.engine.dialect.name
            context.configure(dialect_name=name, literal_binds=True, **options)
            context.run_migrations()
            return
        with self.engine.connect() as connection:
            context.configure(connection=connection, **options)
            with context.begin_transaction():
                context.run_migrations()


def shown(engine: Engine) -> dict[str, list[str]]:
    """Return the definitions of all tables, as sorted lines.

    Sorted, because keys are in the order in which they were added, and the
    indexes of a table are a set to SQLAlchemy.  Triggers are in it, too.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(
                "SELECT name, sql FROM sqlite_master "
                "WHERE name NOT LIKE 'sqlite_%' AND tbl_name NOT LIKE 'alem%'"
            )
            found = {row.name: row.sql for row in rows}
        else:
            quote = engine.dialect.identifier_preparer.quote
            found = {
                name: connection.exec_driver_sql(
                    f"SHOW CREATE TABLE {quote(name)}"
                ).one()[1]
                for name in inspect(connection).get_table_names()
                if not name.startswith("alembic")
            }
    return {
        name: sorted(line.strip(", \t") for line in _counted(sql).splitlines())
        for name, sql in found.items()
    }


def _counted(sql: str) -> str:
    # MariaDB numbers the foreign keys without a name in their order.
    sql = re.sub(r"_ibfk_\d+`", "_ibfk`", sql)
    return re.sub(r" AUTO_INCREMENT=\d+", "", sql)
