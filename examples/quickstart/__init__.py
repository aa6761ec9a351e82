"""Import a browser's bookmarks, and see where each object lives.

::

    python -m examples.quickstart                   # or: make quickstart
    python -m examples.quickstart bookmarks.html    # your browser's export
    python -m examples.quickstart --topology examples/topology.mariadb.toml

Folders become boards, links become pins, and a few sample users share the
boards.  On SQLite nothing has to be installed and every virtual shard is a
file to look into: ``data/server1/db00007.sqlite``.

In the order to read:

``models.py``
    Three classes, with all that models declare about sharding.
``pinboard.py``
    Writes them and reads them again: all calls of the library.
``bookmarks.py``, ``links.py``, ``tags.py``
    From an export to folders and links; independent of databases.
``showing.py``, ``progress.py``, ``__main__.py``
    The output, and the command.

Each run adds objects: after two runs there are two imports with different
ids.  A file that is refused leaves everything as it was, since it
is read to its end before the first write.  What is not shown: the order of
the pins of a board is that of their ids.
"""
