"""The API of Conduit, a blog with followers, as a service with FastAPI.

::

    python -m examples.conduit                              # run it once
    uvicorn --factory examples.conduit.service:create_app   # serve it

It takes the extras ``fastapi`` and ``aiosqlite``, and ``httpx`` or
``uvicorn``.  The first way asserts what it shows, in a temporary directory;
the second keeps its data in ``data/``.  The API is that of the RealWorld
project, except that ids are strings.
"""
