"""The store on etcd: its members, its alarms, and whether they wait for the disk and compact."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial

from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops.doctor.finding import Broken, Case, Checks, Finding, Weak, examined, judged
from celery_dlock.ops.doctor.shared import Members, Offset, clock_skew, cluster, measured
from celery_dlock.stores.etcd.address import Address, address_of
from celery_dlock.stores.etcd.client import Connection, EtcdClient, NotConnected, rpc
from celery_dlock.stores.etcd.names import Names

#: Seconds for a member to answer.
MEMBER_TIMEOUT = 5.0

#: So many revisions, some 7 MB of locks, are more than a compaction of every hour would leave to a
#: store that is little used; one that is much used reaches them soon.
PILED_UP = 20_000

#: Bytes of its log that no member writes between two waits for the disk, on the average, if it
#: waits at all: it does so for each batch. One that does not wait still does at its start.
UNSYNCED = 2**20

_SYNCED = re.compile(r"^etcd_disk_wal_fsync_duration_seconds_count (\S+)$", re.MULTILINE)
_WRITTEN = re.compile(r"^etcd_disk_wal_write_bytes_total (\S+)$", re.MULTILINE)

_COMPACTED = "required revision has been compacted"

_RUN = "run etcd 3.4.31, 3.5.13 or later"


@dataclass(frozen=True, slots=True)
class Cluster(Members):
    """Also the version, the alarms, and how many revisions were written since a compaction."""

    version: str = "3.6"
    alarms: str = ""
    revisions: int = 0

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", self.version)[:3]))


@dataclass(frozen=True, slots=True)
class Member:
    """The bytes of its log that it has written, its waits for the disk, and its clock."""

    written: float
    synced: float
    offset: Offset


CLUSTER: Checks[Cluster] = {
    **cluster("etcd"),
    "etcd-version": (
        Broken(
            lambda cluster: cluster.number < (3, 4) and cluster.version,
            "version {}",
            promise="Its API is not the one that the store uses.",
            fix=_RUN,
        ),
        Weak(
            lambda cluster: (
                ((3, 4) <= cluster.number < (3, 4, 31) or (3, 5) <= cluster.number < (3, 5, 13))
                and cluster.version
            ),
            "version {}",
            promise="A leader that was paused may end leases that its successor has renewed (etcd "
            "issue 15247): two tasks hold one key for some seconds.",
            fix=_RUN,
        ),
    ),
    "etcd-alarm": Broken(
        lambda cluster: cluster.alarms,
        "alarm {}",
        promise="It refuses writes: no lock is taken, and held locks expire.",
        fix="compact and defragment (etcdctl compaction REVISION, etcdctl defrag), then etcdctl "
        "alarm disarm; replace a member with CORRUPT",
    ),
    "etcd-compaction": Weak(
        lambda cluster: cluster.revisions > PILED_UP and cluster.revisions,
        "{} revisions, and none was ever compacted",
        promise="Each lock leaves two revisions. When --quota-backend-bytes is reached the store "
        "refuses writes.",
        fix="start every member with --auto-compaction-retention=1h",
    ),
}

MEMBER: Checks[Member] = {
    "etcd-fsync": Broken(
        lambda member: member.written > UNSYNCED * max(member.synced, 1) and member,
        "{0.written:.0f} bytes of its log were written with {0.synced:.0f} waits for the disk",
        promise="A power cut loses confirmed writes: two tasks hold one key, and tokens go "
        "backwards.",
        fix="start it without --unsafe-no-fsync",
    ),
    **clock_skew(
        "Waiting times are measured with the clocks of the workers' hosts. With a wrong clock a "
        "task gives up, or is woken again, too early or too late."
    ),
}


def examine_etcd(case: Case) -> Iterator[Finding]:
    """``etcd://`` and ``etcd+https://``."""
    address = address_of(case.settings.url, case.settings.backend_options)
    place = address.place
    answering = [endpoint for endpoint in address.endpoints if _answers(address, endpoint)]
    yield from judged(CLUSTER, Cluster(address.endpoints, answering), place)
    if not answering:
        return
    with closing(EtcdClient(address)) as client:
        status = client.call("Status", rpc.StatusRequest(), repeats=True)
        yield from judged(CLUSTER, Cluster(version=str(status.version)), place)
        yield from examined(CLUSTER, place, partial(_alarms, client))
        yield from examined(CLUSTER, place, partial(_members, client))
        yield from examined(CLUSTER, place, partial(_revisions, client, case.settings.key_prefix))
    for endpoint in answering:
        at = f"member {endpoint}"
        yield from examined(MEMBER, at, partial(_member, address, case, endpoint))


def _answers(address: Address, endpoint: str) -> bool:
    connection = Connection(address, endpoint)
    try:
        connection.open(MEMBER_TIMEOUT)
    except NotConnected:
        return False
    connection.close()
    return True


def _alarms(client: EtcdClient) -> Cluster:
    answer = client.call("Alarm", rpc.AlarmRequest(), repeats=True)  # GET is the default action
    names = {rpc.AlarmType.Name(alarm.alarm) for alarm in answer.alarms}
    return Cluster(alarms=", ".join(sorted(names)))


def _members(client: EtcdClient) -> Cluster:
    answer = client.call("MemberList", rpc.MemberListRequest(), repeats=True)
    return Cluster(vote=len(answer.members))


def _revisions(client: EtcdClient, prefix: str) -> Cluster:
    """How many were written, if the first is still there."""
    # What begins like that a user of the store may read.
    request = rpc.RangeRequest(key=Names(prefix).root, revision=1, count_only=True)
    try:
        answer = client.call("Range", request, repeats=True)
    except BackendUnavailable as exc:
        if _COMPACTED in str(exc):
            return Cluster()
        raise
    return Cluster(revisions=answer.header.revision)


def _member(address: Address, case: Case, endpoint: str) -> Member:
    context = _context(case) if address.tls else None
    url = f"{'https' if address.tls else 'http'}://{endpoint}/metrics"
    figures = ""

    def date() -> float:
        nonlocal figures
        with urllib.request.urlopen(url, timeout=MEMBER_TIMEOUT, context=context) as answer:
            figures = answer.read().decode()
            return parsedate_to_datetime(answer.headers["Date"]).timestamp()

    offset = measured(case.clock, date, unit=1.0)  # the clock is told in whole seconds
    return Member(_figure(_WRITTEN, figures), _figure(_SYNCED, figures), offset)


def _context(case: Case) -> ssl.SSLContext:
    """The files of the driver's options; they were read before, when the address was."""
    given = case.settings.backend_options
    context = ssl.create_default_context(cafile=given.get("ca_cert"))
    if given.get("cert_cert"):
        context.load_cert_chain(given["cert_cert"], given["cert_key"])
    return context


def _figure(pattern: re.Pattern[str], figures: str) -> float:
    match = pattern.search(figures)
    if match is None:
        raise LookupError("its figures are not those of an etcd")
    return float(match[1])
