"""Former paths of public modules, which can still be imported.

``sqla_shard.verifying`` is :mod:`sqla_shard.verify` today, and parts of
``sqla_shard.scattering`` are in two packages.  An application that imports a
former path gets a module with the attributes of the current ones.  Nothing in
this package uses the former paths.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# The former path, and the modules that now have its names, in search order.
FORMER = {
    "sqla_shard.async_session": ("sqla_shard.cluster",),
    "sqla_shard.cache.dogpile_backend": ("sqla_shard.cache.stores.dogpile",),
    "sqla_shard.cache.outbox": ("sqla_shard.outbox.invalidations",),
    "sqla_shard.cache.redis": ("sqla_shard.cache.stores.redis",),
    "sqla_shard.cache.statistics": ("sqla_shard.cache.stores.memcached",),
    "sqla_shard.committed": ("sqla_shard.outbox.transaction_keys",),
    "sqla_shard.deleting": ("sqla_shard.models.deletion",),
    "sqla_shard.engines": ("sqla_shard.engine",),
    "sqla_shard.explaining": ("sqla_shard.cluster",),
    "sqla_shard.ext.flask_app": (
        "sqla_shard.ext.flask_commands",
        "sqla_shard.ext.flask",
    ),
    "sqla_shard.following": (
        "sqla_shard.topology.follow",
        "sqla_shard.topology.zookeeper",
    ),
    "sqla_shard.health": ("sqla_shard.cluster",),
    "sqla_shard.intents": ("sqla_shard.outbox",),
    # The class of claims that were pickled.
    "sqla_shard.lookup.claiming": ("sqla_shard.models.lookup_claims",),
    "sqla_shard.lookup.normalization": ("sqla_shard.models.normalization",),
    "sqla_shard.mappings": ("sqla_shard.models",),
    "sqla_shard.orm": ("sqla_shard.models",),
    # A function of objects that were pickled.
    "sqla_shard.orm.hiding": ("sqla_shard.models.soft_delete",),
    "sqla_shard.paging": ("sqla_shard.session.paging",),
    "sqla_shard.reference": ("sqla_shard.models.reference",),
    "sqla_shard.rehearsing": ("sqla_shard.cluster",),
    "sqla_shard.retrying": ("sqla_shard.cluster.retries",),
    "sqla_shard.scattering": ("sqla_shard.engine", "sqla_shard.merging.merge"),
    "sqla_shard.testing.binaries": ("sqla_shard.testing.programs",),
    "sqla_shard.testing.mariadb_fleet": ("sqla_shard.testing.server_fleet",),
    "sqla_shard.testing.mariadb_pair": ("sqla_shard.testing.server_pair",),
    "sqla_shard.testing.mariadb_setup": ("sqla_shard.testing.server_setup",),
    "sqla_shard.tokens": ("sqla_shard.outbox.transaction_keys",),
    "sqla_shard.verifying": ("sqla_shard.verify",),
}


class _Finder(MetaPathFinder, Loader):
    """Finds modules by their former paths."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in FORMER:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__doc__ = f"Former path of {', '.join(FORMER[name])}."

        # Called for each attribute that the module does not have itself.
        def find(attribute: str) -> Any:
            if not attribute.startswith("__"):
                for current in FORMER[name]:
                    found = importlib.import_module(current)
                    if hasattr(found, attribute):
                        return getattr(found, attribute)
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

        module.__dict__["__getattr__"] = find


def install() -> None:
    """Make the former paths importable, once for each process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
