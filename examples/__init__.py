"""Examples; each asserts what it shows and is run by the tests.

In the order to read them:

``quickstart``
    A browser's bookmarks as users, boards and pins on many shards:
    ``python -m examples.quickstart``.

The topologies beside them, ``topology.sqlite.toml`` and
``topology.mariadb.toml``, are starting points for one of your own.
"""
