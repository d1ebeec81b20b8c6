"""The store on ZooKeeper: the session that its servers grant, and how many servers there are."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kazoo.hosts import collect_hosts

from celery_dlock.ops.doctor.finding import (
    Case,
    Finding,
    asked,
    listed,
    quorum_size,
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


def examine_zookeeper(case: Case) -> Iterator[Finding]:
    """``zookeeper://``. Each server is asked for a session of its own, which is ended again."""
    asked_for = runtime(case.app).options
    address = address_of(case.settings.url, asked_for)
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
        yield from unavailable("zookeeper", hosts, there, where)
        for host, session in list(there.items())[:1]:
            yield from _granted(session, asked_for.ttl, f"server {host}")
            yield from _shorter(session, ttls_of(case.app), where)
            yield from asked(where, _members(session, where))
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


def _granted(session: Session, ttl: float, where: str) -> Iterator[Finding]:
    granted = session.timeout
    if granted is None or abs(granted - ttl) < 0.001:
        return
    if granted < ttl:
        meaning = "a shorter pause of a worker loses all of them"
        fix = f"maxSessionTimeout={int(ttl * 1000)} in zoo.cfg of every server, or "
    else:
        meaning = "the locks of a dead worker are free later"
        fix = ""  # minSessionTimeout is two ticks, and is to be no less
    yield Finding(
        "zookeeper-session-timeout",
        "weak",
        where,
        promise=f"Locks last for {granted:g} s and not dlock_ttl: {meaning}.",
        found=f"dlock_ttl = {ttl:g}, and a session of {granted:g} s is granted",
        fix=f"{fix}dlock_ttl = {granted:g}",
    )


def _shorter(session: Session, ttls: Mapping[str, float], where: str) -> Iterator[Finding]:
    granted = session.timeout or 0.0
    if shorter := [name for name, ttl in ttls.items() if ttl < granted]:
        yield Finding(
            "zookeeper-shared-ttl",
            "weak",
            where,
            promise=f"All locks of a process expire together, after {granted:g} s: if a worker "
            "dies, the keys of these tasks are free later than they ask for.",
            found=f"a shorter ttl of {listed(shorter)}",
            fix="one ttl for all tasks of a worker, or a store whose leases differ",
        )


def _members(session: Session, where: str) -> Iterator[Finding]:
    ((data, _),) = session.flight([get(MEMBERS)])
    members = re.findall(rb"^server\.\d+=(?!.*:observer)", data, re.MULTILINE)
    yield from quorum_size("zookeeper", len(members) or 1, where)
