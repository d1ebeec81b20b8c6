"""The store on etcd: its members, its alarms, and whether they wait for the disk and compact."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from celery_dlock.backends.etcd_address import Address, address_of
from celery_dlock.backends.etcd_client import EtcdClient
from celery_dlock.backends.etcd_connection import Connection, NotConnected, rpc
from celery_dlock.errors import BackendUnavailable
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.clock import Offset
from celery_dlock.inspection.doctor.etcd_http import ask
from celery_dlock.inspection.doctor.finding import Finding, asked
from celery_dlock.inspection.doctor.odd import odd

#: Seconds for a member to answer.
PATIENCE = 5.0

#: So many revisions, some 7 MB of locks, are more than a compaction of every hour would leave to a
#: store that is little used; one that is much used reaches them soon.
PILED_UP = 20_000

#: Bytes of its log that no member writes between two waits for the disk, on the average, if it
#: waits at all: it does so for each batch. One that does not wait still does at its start.
UNSYNCED = 2**20

_COMPACTED = "required revision has been compacted"


def examine_etcd(case: Case) -> Iterator[Finding]:
    """``etcd://`` and ``etcd+https://``."""
    address = address_of(case.settings.url, case.settings.backend_options)
    where = address.place
    there = [endpoint for endpoint in address.endpoints if _answers(address, endpoint)]
    yield from _away(address, there, where)
    if not there:
        return
    with closing(EtcdClient(address)) as client:
        status = client.call("Status", rpc.StatusRequest(), repeats=True)
        yield from version(str(status.version), where)
        yield from asked(where, _alarms(client, where))
        yield from asked(where, _members(client, where))
        yield from asked(where, piling_up(client, case.settings.key_prefix, where, PILED_UP))
    for endpoint in there:
        at = f"member {endpoint}"
        yield from asked(at, _member(address, case, endpoint, at))


def _away(address: Address, there: Sequence[str], where: str) -> Iterator[Finding]:
    away = [endpoint for endpoint in address.endpoints if endpoint not in there]
    if away:
        yield Finding(
            "etcd-away",
            "weak" if there else "broken",
            where,
            promise="With fewer members the loss of one more may leave no majority: no lock is "
            "taken, given back or renewed.",
            found=f"no answer from {', '.join(away)}",
            mend="start them, or take them out of the cluster and of dlock_url",
        )


def _answers(address: Address, endpoint: str) -> bool:
    connection = Connection(address, endpoint)
    try:
        connection.open(PATIENCE)
    except NotConnected:
        return False
    connection.close()
    return True


def version(text: str, where: str) -> Iterator[Finding]:
    """What is known of etcd *text*, as in ``"3.5.13"``."""
    number = tuple(map(int, re.findall(r"\d+", text)[:3]))
    if number < (3, 4):
        yield Finding(
            "etcd-version",
            "broken",
            where,
            promise="Its calls are not those that the store makes.",
            found=f"version {text}",
            mend="run etcd 3.4.31, 3.5.13 or later",
        )
    elif number < (3, 4, 31) or (3, 5) <= number < (3, 5, 13):
        yield Finding(
            "etcd-version",
            "weak",
            where,
            promise="A leader that stood still may end leases that its successor has prolonged "
            "(etcd issue 15247): two tasks hold one key for some seconds.",
            found=f"version {text}",
            mend="run etcd 3.4.31, 3.5.13 or later",
        )


def _alarms(client: EtcdClient, where: str) -> Iterator[Finding]:
    answer = client.call("Alarm", rpc.AlarmRequest(), repeats=True)  # GET is the default action
    names = sorted({rpc.AlarmType.Name(alarm.alarm) for alarm in answer.alarms})
    if names:
        yield Finding(
            "etcd-alarm",
            "broken",
            where,
            promise="It refuses to write: no lock is taken, and those that are held end.",
            found=f"alarm {', '.join(names)}",
            mend="compact and defragment (etcdctl compaction REVISION, etcdctl defrag), then "
            "etcdctl alarm disarm; a member with CORRUPT is to be replaced",
        )


def _members(client: EtcdClient, where: str) -> Iterator[Finding]:
    answer = client.call("MemberList", rpc.MemberListRequest(), repeats=True)
    members: Sequence[Any] = answer.members
    yield from odd("etcd", len(members), where)


def piling_up(client: EtcdClient, prefix: str, where: str, most: int) -> Iterator[Finding]:
    """Whether more than *most* revisions were written and the first is still there."""
    # What begins like that a user of the store may read.
    request = rpc.RangeRequest(key=f"{prefix}/".encode(), revision=1, count_only=True)
    try:
        answer = client.call("Range", request, repeats=True)
    except BackendUnavailable as exc:
        if _COMPACTED in str(exc):
            return
        raise
    if answer.header.revision > most:
        yield Finding(
            "etcd-compaction",
            "weak",
            where,
            promise="Each lock leaves two revisions, and when --quota-backend-bytes is reached the "
            "store refuses to write.",
            found=f"{answer.header.revision} revisions, of which none was ever compacted",
            mend="start every member with --auto-compaction-retention=1h",
        )


def _member(address: Address, case: Case, endpoint: str, where: str) -> Iterator[Finding]:
    told = ask(address, case, endpoint)
    if told.written > UNSYNCED * max(told.synced, 1):
        yield Finding(
            "etcd-fsync",
            "broken",
            where,
            promise="A power cut takes back what was confirmed: two tasks hold one key, and tokens "
            "go backwards.",
            found=f"{told.written:.0f} bytes of its log were written with {told.synced:.0f} waits "
            "for the disk",
            mend="start it without --unsafe-no-fsync",
        )
    yield from _on_time(told.offset, where)


def _on_time(offset: Offset, where: str) -> Iterator[Finding]:
    if offset.wrong:
        yield Finding(
            "clock-skew",
            "weak",
            where,
            promise="How long a message waits goes by the clocks of the workers' hosts: one that "
            "is wrong gives up, or calls again, too early or too late.",
            found=f"its clock is {offset} this host's",
            mend="run NTP (chrony, systemd-timesyncd) on both hosts",
        )
