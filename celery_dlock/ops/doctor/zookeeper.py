"""The store on ZooKeeper: the session that its servers grant, and how many servers there are."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kazoo.hosts import collect_hosts

from celery_dlock.ops.doctor.finding import (
    Case,
    Checks,
    Finding,
    Members,
    Weak,
    examined,
    judged,
    listed,
    quorum,
    unavailable,
)
from celery_dlock.runtime import runtime, ttls_of
from celery_dlock.stores.zookeeper.client import (
    CONNECT_TIMEOUT,
    Session,
    ZooKeeperAddress,
    address_of,
    get,
)

#: Seconds for all servers together to grant a session.
SERVERS_TIMEOUT = 5.0

#: Who the members are, in a node that everybody may read.
MEMBERS = "/zookeeper/config"


UNAVAILABLE = unavailable("zookeeper")

QUORUM = quorum("zookeeper")


@dataclass(frozen=True, slots=True)
class Leases:
    """How long a session lasts, ``dlock_ttl``, and the longest that each task asks for."""

    granted: float
    ttl: float
    ttls: Mapping[str, float]

    @property
    def differ(self) -> bool:
        return self.granted > 0 and abs(self.granted - self.ttl) >= 0.001

    @property
    def milliseconds(self) -> int:
        return int(self.ttl * 1000)

    @property
    def shorter(self) -> str:
        """The tasks that ask for less than is granted."""
        return listed(name for name, ttl in self.ttls.items() if ttl < self.granted)


_GRANTED = "dlock_ttl = {0.ttl:g}, and a session of {0.granted:g} s is granted"

SESSION: Checks[Leases] = {
    "zookeeper-session-timeout": (
        Weak(
            lambda leases: leases.differ and leases.granted < leases.ttl and leases,
            _GRANTED,
            promise="Locks last for {0.granted:g} s and not dlock_ttl: a shorter pause of a worker "
            "loses all of them.",
            fix="maxSessionTimeout={0.milliseconds} in zoo.cfg of every server, or "
            "dlock_ttl = {0.granted:g}",
        ),
        # minSessionTimeout is two ticks, and is to be no less.
        Weak(
            lambda leases: leases.differ and leases.granted > leases.ttl and leases,
            _GRANTED,
            promise="Locks last for {0.granted:g} s and not dlock_ttl: the locks of a dead worker "
            "are free later.",
            fix="dlock_ttl = {0.granted:g}",
        ),
    )
}

SHARED: Checks[Leases] = {
    "zookeeper-shared-ttl": Weak(
        lambda leases: leases.shorter and leases,
        "a shorter ttl of {0.shorter}",
        promise="All locks of a process expire together, after {0.granted:g} s: if a worker dies, "
        "the keys of these tasks are free later than they ask for.",
        fix="one ttl for all tasks of a worker, or a store whose leases differ",
    )
}


def examine_zookeeper(case: Case) -> Iterator[Finding]:
    """``zookeeper://``. Each server is asked for a session of its own, which is ended again."""
    options = runtime(case.app).options
    address = address_of(case.settings.url, options)
    where = f"store {address.hosts}"
    hosts = address.hosts.split(",")
    sessions = {host: Session(_only(address, host)) for host in hosts if _listens(host)}
    try:
        until = time.monotonic() + SERVERS_TIMEOUT
        there = {
            host: session
            for host, session in sessions.items()
            if session.connected(max(0.0, until - time.monotonic()))
        }
        yield from judged(UNAVAILABLE, Members(hosts, there), where)
        for host, session in list(there.items())[:1]:
            leases = Leases(session.timeout or 0.0, options.ttl, ttls_of(case.app))
            yield from judged(SESSION, leases, f"server {host}")
            yield from judged(SHARED, leases, where)
            yield from examined(QUORUM, where, partial(_members, session))
    finally:
        for session in sessions.values():
            session.stop()


def _only(address: ZooKeeperAddress, host: str) -> ZooKeeperAddress:
    return replace(address, hosts=host, arguments={**address.arguments, "hosts": host})


def _listens(host: str) -> bool:
    """A session that nobody listens to would be waited for."""
    (address,), _ = collect_hosts(host)
    try:
        socket.create_connection(address, CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def _members(session: Session) -> int:
    """How many servers vote."""
    ((data, _),) = session.flight([get(MEMBERS)])
    return len(re.findall(rb"^server\.\d+=(?!.*:observer)", data, re.MULTILINE)) or 1
