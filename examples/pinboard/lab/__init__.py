"""The lab of the demo: what it shows of sharding, and lets one try.

Only the command of the pinboard has it; :mod:`examples.pinboard.wsgi` does
not.  The pages of the pinboard know nothing of it but two lines of
``base.html``.

``lab.py``
    What it consists of, and how it is added to the application.
``trace.py``
    The strip of each page: its statements, by events of the cluster.
``fleet_map.py``
    The servers and their virtual shards in the top bar.
``bench.py``, ``mariadb.py``
    What can be broken, stopped and grown; and servers that can be.
``writers.py``, ``writing.py``
    200 writers for 30 seconds: their process, and its figures.
``newest.py``
    The newest pins of all users, and a statement that is refused.
``tour.py``, ``views.py``
    The guided tour, and the pages.
"""
