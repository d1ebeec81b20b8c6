"""The store on ZooKeeper: the session that its servers grant, and how many servers there are."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from kazoo.hosts import collect_hosts

from celery_dlock.ops.doctor.finding import Case, Checks, Finding, Weak, examined, judged, listed
from celery_dlock.ops.doctor.shared import Members, cluster
from celery_dlock.runtime import runtime, ttls_of
from celery_dlock.stores.zookeeper.client import (
    CONNECT_TIMEOUT,
    Session,
    address_of,
    get,
)

#: Seconds for all servers together to grant a session.
SERVERS_TIMEOUT = 5.0

#: Who the members are, in a node that everybody may read.
MEMBERS = "/zookeeper/config"


CLUSTER = cluster("zookeeper")

_GRANTED = "dlock_ttl = {0[ttl]:g}, and a session of {0[granted]:g} s is granted"

#: Of the seconds that a session is *granted* for, and ``dlock_ttl``.
SESSION: Checks[Mapping[str, float]] = {
    "zookeeper-session-timeout": (
        Weak(
            lambda session: 0 < session["granted"] <= session["ttl"] - 0.001 and session,
            _GRANTED,
            promise="Locks last for {0[granted]:g} s and not dlock_ttl: a shorter pause of a "
            "worker loses all of them.",
            fix="maxSessionTimeout={0[milliseconds]:.0f} in zoo.cfg of every server, or "
            "dlock_ttl = {0[granted]:g}",
        ),
        Weak(
            lambda session: session["granted"] >= session["ttl"] + 0.001 and session,
            _GRANTED,
            promise="Locks last for {0[granted]:g} s and not dlock_ttl: the locks of a dead worker "
            "are free later.",
            fix="dlock_ttl = {0[granted]:g}",  # minSessionTimeout is to be no less than two ticks
        ),
    )
}

#: Of the seconds that a session is granted for, and the tasks that ask for less.
SHARED: Checks[tuple[float, str]] = {
    "zookeeper-shared-ttl": Weak(
        lambda session: session[1] and session,
        "a shorter ttl of {0[1]}",
        promise="All locks of a process expire together, after {0[0]:g} s: if a worker dies, the "
        "keys of these tasks are free later than they ask for.",
        fix="one ttl for all tasks of a worker, or a store whose leases differ",
    )
}


def examine_zookeeper(case: Case) -> Iterator[Finding]:
    """``zookeeper://``. Each server is asked for a session of its own, which is ended again."""
    options = runtime(case.app).options
    address = address_of(case.settings.url, options)
    place = f"store {address.hosts}"
    hosts = address.hosts.split(",")
    sessions = {
        host: Session(replace(address, hosts=host, arguments={**address.arguments, "hosts": host}))
        for host in hosts
        if _listens(host)
    }
    try:
        until = time.monotonic() + SERVERS_TIMEOUT
        answering = {
            host: session
            for host, session in sessions.items()
            if session.connected(max(0.0, until - time.monotonic()))
        }
        yield from judged(CLUSTER, Members(hosts, answering), place)
        for host, session in list(answering.items())[:1]:
            granted, ttl = session.timeout or 0.0, options.ttl
            facts = {"granted": granted, "ttl": ttl, "milliseconds": int(ttl * 1000)}
            yield from judged(SESSION, facts, f"server {host}")
            shorter = listed(name for name, ttl in ttls_of(case.app).items() if ttl < granted)
            yield from judged(SHARED, (granted, shorter), place)
            yield from examined(CLUSTER, place, partial(_members, session))
    finally:
        for session in sessions.values():
            session.stop()


def _listens(host: str) -> bool:
    """A session that nobody listens to would be waited for."""
    (address,), _ = collect_hosts(host)
    try:
        socket.create_connection(address, CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def _members(session: Session) -> Members:
    ((data, _),) = session.flight([get(MEMBERS)])
    voters = re.findall(rb"^server\.\d+=(?!.*:observer)", data, re.MULTILINE)
    return Members(vote=len(voters) or 1)
