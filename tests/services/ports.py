"""Ports on loopback that nobody listens on.

They lie below those that the kernel hands out by itself: a server that is down for a moment, or
not up yet, does not lose its port to an outgoing connection of another test.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

_PORTS = range(10_000, 22_000)  # 10,000 more, as for the bus of a Redis Cluster, is below 32,768
_given: set[int] = set()
_chance = random.SystemRandom()  # Hypothesis seeds the other one: the same in each process


def free_ports(count: int) -> list[int]:
    """*count* different ones, free at the moment and never given to this process before."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = _chance.choice(_PORTS)
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                if port not in _given:
                    probe.bind(("127.0.0.1", port))
                    found.append(port)
                    _given.add(port)
    return found
