"""The store on ZooKeeper: the session that its servers grant, and how many servers there are."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kazoo.hosts import collect_hosts

from celery_dlock.backends.zookeeper_session import CONNECT_TIMEOUT, Session, get
from celery_dlock.backends.zookeeper_url import Place, place_of
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding, asked
from celery_dlock.inspection.doctor.odd import odd

#: Seconds for all servers together to grant a session.
PATIENCE = 5.0

#: Who the members are, in a node that everybody may read.
MEMBERS = "/zookeeper/config"


def examine_zookeeper(case: Case) -> Iterator[Finding]:
    """``zookeeper://``. Each server is asked for a session of its own, which is ended again."""
    place = place_of(case.settings.url, case.settings.options)
    where = f"store {place.hosts}"
    hosts = place.hosts.split(",")
    sessions = {host: Session(_only(place, host)) for host in hosts if _listens(host)}
    try:
        until = time.monotonic() + PATIENCE
        there = {
            host: session
            for host, session in sessions.items()
            if session.connected(max(0.0, until - time.monotonic()))
        }
        yield from _away(hosts, there, where)
        for host, session in list(there.items())[:1]:
            yield from _granted(session, case.settings.ttl, f"server {host}")
            yield from asked(where, _members(session, where))
    finally:
        for session in sessions.values():
            session.stop()


def _only(place: Place, host: str) -> Place:
    return replace(place, hosts=host, arguments={**place.arguments, "hosts": host})


def _listens(host: str) -> bool:
    """A session that nobody listens to would be waited for."""
    (address,), _ = collect_hosts(host)
    try:
        socket.create_connection(address, CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def _away(hosts: Sequence[str], there: Mapping[str, Any], where: str) -> Iterator[Finding]:
    away = [host for host in hosts if host not in there]
    if away:
        yield Finding(
            "zookeeper-away",
            "weak" if there else "broken",
            where,
            promise="With fewer servers the loss of one more may leave no majority: no lock is "
            "taken, given back or renewed.",
            found=f"no session from {', '.join(away)}",
            mend="start them, or take them out of the ensemble and of dlock_url",
        )


def _granted(session: Session, ttl: float, where: str) -> Iterator[Finding]:
    granted = session.timeout
    if granted is None or abs(granted - ttl) < 0.001:
        return
    if granted < ttl:
        meaning = "a shorter pause of a worker loses all of them"
        mend = f"maxSessionTimeout={int(ttl * 1000)} in zoo.cfg of every server, or "
    else:
        meaning = "those of a worker that dies are free later"
        mend = ""  # minSessionTimeout is two ticks, and is to be no less
    yield Finding(
        "zookeeper-session-timeout",
        "weak",
        where,
        promise=f"Locks last for {granted:g} s and not dlock_ttl: {meaning}.",
        found=f"dlock_ttl = {ttl:g}, and a session of {granted:g} s is granted",
        mend=f"{mend}dlock_ttl = {granted:g}",
    )


def _members(session: Session, where: str) -> Iterator[Finding]:
    ((data, _),) = session.flight([get(MEMBERS)])
    members = re.findall(rb"^server\.\d+=(?!.*:observer)", data, re.MULTILINE)
    yield from odd("zookeeper", len(members) or 1, where)
