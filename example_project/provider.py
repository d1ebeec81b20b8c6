"""The payment provider and the carriers: the slow part of every event, outside of the shop.

``SHOP_PROVIDER`` names another function, as the demo does to have a task stand still.
"""

from __future__ import annotations

import os
import time

from kombu.utils.imports import symbol_by_name


def simulated(event_id: str) -> None:
    """A call over the network. The id lets the provider drop what it was told before."""
    time.sleep(0.01)


def tell(event_id: str) -> None:
    """Tell the provider of an event, and wait for its answer."""
    symbol_by_name(os.environ.get("SHOP_PROVIDER", "example_project.provider:simulated"))(event_id)
