"""Examples; each asserts what it shows and is run by the tests.

In the order to read them:

``quickstart``
    A browser's bookmarks as users, boards and pins on many shards:
    ``python -m examples.quickstart``.
``colocation``
    What is one transaction, what is refused across shards, and what to do
    there instead.
``ordering``
    A list that users put in order, its pages, and the gaps in it.
``adopting``
    An existing database, and object classes in addition to it.
``pinboard``
    All of it as a web application: ``python -m examples.pinboard``.
``fleet``
    Six MariaDB servers to fail over and to split, with their configuration
    and accounts: ``python -m examples.fleet fleet-data``.

The topologies in this folder, ``topology.sqlite.toml`` and
``topology.mariadb.toml``, are starting points for one of your own.
"""
