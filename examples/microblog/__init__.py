"""A microblog of the kind that Flask tutorials build, twice.

``single/`` is written for one database with Flask-SQLAlchemy: users who follow
each other, posts, messages, a search, and pages with numbers for
administrators.  ``sharded/`` is the same application on virtual shards.  The
templates and the views are shared or equal; what differs is in ``models.py``::

    diff -r examples/microblog/single examples/microblog/sharded
"""
