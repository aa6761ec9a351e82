r"""Boards of links that people put in order: Flask on top of sqla_shard.

::

    python -m examples.pinboard                 # SQLite, in pinboard-data/
    python -m examples.pinboard --mariadb       # two servers, started for it
    python -m examples.pinboard --topology examples/topology.mariadb.toml

It opens http://127.0.0.1:5000/ with three sample users and their boards on 64
virtual shards of two servers; anybody can sign up.  Ctrl-C ends it;
``--data`` says where the SQLite files are, ``--port`` and ``--no-browser``
what they say.  Needs the packages of the group ``examples`` in
``pyproject.toml``.

What it does not do: there are no passwords, whoever knows the address of a
user is that user.  It listens on 127.0.0.1 only.  How far an import is, is
known to the one process that runs it.  A page asks one shard after the other.

The command makes databases and brings their tables up to date before it
serves.  For other servers and several processes that is done once, before
they are started, by ``sqla-shard schema``::

    sqla-shard schema --config examples/pinboard/alembic.ini status
    sqla-shard --topology topology.toml \
        schema --config examples/pinboard/alembic.ini --name lookup upgrade

Without ``--topology`` it is the data of ``make demo``, in the current
directory.

A user, the user's boards, and their pins are on one shard, with three mapping
tables: whatever one does to a board is one transaction on one database.  What
leads to other shards: mail addresses and names to users, the boards that one
follows, and pins that were saved on another board.  What a command that was
killed has left of these is finished when it is started again; several
processes have ``sqla-shard repair --models examples.pinboard.models`` beside
them.  In the order to read:

``models.py``
    Three object classes, seven mapping classes, two lookups.
``migrations/``, ``alembic.ini``, ``topology.toml``, ``tables.py``
    How their tables came to be what they are, for each keyspace, and what
    brings a database there.
``boards.py``
    All that is done with them, as functions of a session: the use of the
    library.
``signing_up.py``, ``accounts.py``
    An address and a name that nobody else has, and a user.
``relations.py``
    Following boards and saving pins, on whatever shards they are.
``inputs.py``, ``errors.py``
    What is accepted, and what is refused.
``pages.py``, ``api.py``, ``answers.py``, ``showing.py``
    The pages, and JSON beside them; ids and positions are strings there.
``where.py``
    Where an object lives, by its id and the topology.
``caching.py``, ``panel.py``
    What is kept in a cache, and a page with a switch for each class.
``importing.py``, ``samples.py``
    Bookmark files: of users, in a thread, and our own.
``app.py``, ``database.py``, ``security.py``
    The application: the session of a request
    (:mod:`sqla_shard.ext.flask`), CSRF tokens, headers, limits.
``__main__.py``, ``clusters.py``, ``wsgi.py``
    The command, and what other servers and ``flask shard`` take.
``static/``, ``templates/``
    CSS and JavaScript as they are served: no framework and no build step.
    Without JavaScript everything works but dragging.

To use it in a test, give :func:`~examples.pinboard.app.create_app` a cluster
whose topology has a keyspace of objects and one of kind mod.  There
``create_all`` will do, which is faster than all revisions::

    document = sqlite_topology(directory, servers=2, shards=64, lookup=16)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        add_user(cluster, "Ada", shard_id=63)
        app = create_app(cluster)
"""
