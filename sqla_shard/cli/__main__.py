"""``python -m sqla_shard.cli`` is ``sqla-shard``."""

from __future__ import annotations

from sqla_shard.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
