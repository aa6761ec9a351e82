"""Examples; each asserts what it shows and is run by the tests.

In the order to read them:

``quickstart``
    A browser's bookmarks as users, boards and pins on many shards:
    ``python -m examples.quickstart``.
``colocation``
    What is one transaction, what is refused across shards, and what to do
    there instead.
``ordering``
    A list that people put in order, its pages, and how much room is in it.
``adopting``
    The database that there is, and object classes beside it.
``pinboard``
    All of it as a web application: ``python -m examples.pinboard``.

The topologies beside them, ``topology.sqlite.toml`` and
``topology.mariadb.toml``, are starting points for one of your own.
"""
