"""Freezes what a process has imported, as the last that it imports.

Otherwise each of its forks looks at all of it, and so copies it, at each
collection.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
