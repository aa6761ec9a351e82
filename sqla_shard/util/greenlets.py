"""Whether a thread runs greenlets of this library.

greenlet creates a state for each thread that asks for its current greenlet.
It destroys the state at the native end of the thread, for which
``Thread.join()`` does not always wait, and holds a mutex of the process
meanwhile.  A child that is forked at this moment waits for the mutex for ever.
So threads that only send statements must not ask.  Those of sessions do, as
sessions tell tasks apart by their greenlets.
"""

from __future__ import annotations

import threading


class _Thread(threading.local):
    """Facts about the current thread.

    :ivar has_greenlets: whether it has created greenlets of this library; if
        not, none of them is the current one.
    """

    has_greenlets = False


THREAD = _Thread()
