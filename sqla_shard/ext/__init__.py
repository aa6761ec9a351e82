"""What other packages need to use this one; each module is an extra.

Importing this folder loads none of them.
"""

from __future__ import annotations

__all__: list[str] = []
