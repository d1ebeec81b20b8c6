"""The payment provider and the carriers: the slow part of every event, outside of the shop.

``SHOP_PROVIDER`` names another function, as the demo does to have a task stand still.
"""

from __future__ import annotations

import os
import time
from pkgutil import resolve_name


def simulated(event_id: str) -> None:
    """A call over the network. The id lets the provider drop what it was told before."""
    time.sleep(0.03)


def tell(event_id: str) -> None:
    """Tell the provider of an event, and wait for its answer."""
    name = os.environ.get("SHOP_PROVIDER", "example_project.events.provider:simulated")
    resolve_name(name)(event_id)
