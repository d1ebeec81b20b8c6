"""Ports on loopback that nobody listens on.

They lie below those that the kernel hands out by itself: a server that is down for a moment, or
not up yet, does not lose its port to an outgoing connection of another test.

Nor does it lose it to another process that starts servers: each takes whole blocks of ports, and
has a block while it holds the UDP socket of the block's first port, which is never given.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

#: A Redis Cluster server also listens this much above its port, for the other servers.
BUS = 10_000

_PORTS = range(10_000, 20_000)  # with the bus below 32,768, and never on a port that is given
_BLOCK = 50

_claims: list[socket.socket] = []
_chance = random.SystemRandom()  # Hypothesis seeds the other one: the same in each process


def free_ports(count: int) -> list[int]:
    """*count* different ones, free at the moment and never given before, to this or another process
    that still runs."""
    with _one_at_a_time:
        return [next(_free) for _ in range(count)]


def _every_free() -> Iterator[int]:
    firsts = list(_PORTS[::_BLOCK])
    _chance.shuffle(firsts)
    for first in firsts:
        claim = socket.socket(type=socket.SOCK_DGRAM)
        if _bound(claim, first):
            _claims.append(claim)
            block = range(first + 1, first + _BLOCK)
            yield from (port for port in block if _nobody_at(port) and _nobody_at(port + BUS))
        else:
            claim.close()
    raise RuntimeError(f"every port from {_PORTS[0]} to {_PORTS[-1]} was given")


def _nobody_at(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _bound(probe, port)


def _bound(sock: socket.socket, port: int) -> bool:
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


_free = _every_free()
_one_at_a_time = threading.Lock()  # servers are started by several threads
