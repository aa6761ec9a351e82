r"""Boards of links that users put in order: Flask on top of sqla_shard.

::

    python -m examples.pinboard                 # SQLite, in pinboard-data/
    python -m examples.pinboard --mariadb       # two servers, started for it
    python -m examples.pinboard --topology examples/topology.mariadb.toml

It opens http://127.0.0.1:5000/ with three sample users and their boards on 64
virtual shards of two servers; every visitor can sign up.  Ctrl-C ends it;
``--data`` says where the SQLite files are, ``--port`` and ``--no-browser``
what they say.  Needs the packages of the group ``examples`` in
``pyproject.toml``.

Limits: there are no passwords, so the address of a user is enough to sign
in.  It listens on 127.0.0.1 only.  A page queries one shard after another.

The command makes databases and brings their tables up to date before it
serves.  For other servers and several processes that is done once, before
they are started, by ``sqla-shard schema``::

    sqla-shard schema --config examples/pinboard/alembic.ini status
    sqla-shard --topology topology.toml \
        schema --config examples/pinboard/alembic.ini --name lookup upgrade

Without ``--topology`` it is the data of ``make demo``, in the current
directory.

A user, the user's boards, and their pins are on one shard, with three mapping
tables: each change of a board is one transaction on one database.  Other
shards are used for mail addresses and names of users, the users and boards
that a user follows, and pins that were saved on another board.  A home page
is read from the tables; with Redis, ``home.store`` in ``models.py`` would be
a :class:`~sqla_shard.contrib.FeedStore`, with a worker for the queue
``feeds``.  Operations that a killed command has left are completed when it is
started again.

Jobs re-space lists, import bookmark files, and fetch the titles of pins that
were saved without one, from public servers only.  A thread of the command runs
them; several processes need a worker as well, with the same cache, which also
completes the operations of others::

    flask --app examples.pinboard.wsgi shard worker --deliver \
        --queues lists,titles,imports

``PINBOARD_TITLE_SERVERS=intranet.example:80`` allows the pages of an internal
server.

In the order to read:

``models.py``
    Five object classes, seven mapping classes, two lookups, a follow graph
    and home feeds.
``migrations/``, ``alembic.ini``, ``topology.toml``, ``tables.py``
    The migrations of each keyspace, and the code that runs them.
``boards.py``
    All reads and writes, as functions of a session.
``signing_up.py``, ``accounts.py``
    A unique address and name, and a user.
``relations.py``
    Following users and boards, home pages, notifications, and saving pins,
    on whatever shards they are.
``inputs.py``, ``errors.py``
    Validation of input, and errors.
``pages.py``, ``api.py``, ``answers.py``, ``showing.py``
    The pages, and the JSON API; ids and positions are strings there.
``titles.py``, ``fetching.py``, ``workers.py``
    The job that fetches a title, safely, and the thread that runs jobs.
``where.py``
    The location of an object, by its id and the topology.
``caching.py``, ``panel.py``
    The row cache, with a switch for each class, and the queues of jobs.
``importing.py``, ``import_jobs.py``, ``samples.py``
    Bookmark files: of users, written by a job, and our own.
``lab/``
    What the command shows of sharding: the map, the strip of statements, and
    servers that can be stopped.  The pages know nothing of it.
``app.py``, ``database.py``, ``security.py``
    The application: the session of a request
    (:mod:`sqla_shard.ext.flask`), CSRF tokens, headers, limits.
``__main__.py``, ``clusters.py``, ``wsgi.py``
    The command, and the application for other servers and ``flask shard``.
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
