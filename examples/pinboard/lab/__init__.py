"""The lab of the demo: pages that show sharding, and faults to try.

Only the command of the pinboard has it; :mod:`examples.pinboard.wsgi` does
not.  The pages of the pinboard contain two lines for it, in
``base.html``.

``lab.py``
    Its parts, and the function that adds it to an application.
``trace.py``
    The strip of each page: its statements, by events of the cluster.
``fleet_map.py``
    The servers and their virtual shards in the top bar.
``bench.py``, ``local_fleet.py``
    Faults and growth, without servers of its own and with them.
``writers.py``, ``writing.py``
    200 writers for 30 seconds: their process, and its figures.
``newest.py``
    The newest pins of all users, and a statement that is refused.
``tour.py``, ``views.py``
    The guided tour, and the pages.
"""
