"""Steps that take their time: a call over the network, a swapped-out process, a long collection.

``SHOP_SLOW`` names a function to be called there, as the comparison does to have tasks stand still.
"""

from __future__ import annotations

import os
from pkgutil import resolve_name


def step(name: str) -> None:
    """Somewhere in a task that another may be faster than."""
    if stands := os.environ.get("SHOP_SLOW"):
        resolve_name(stands)(name)
