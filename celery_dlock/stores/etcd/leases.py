"""The leases of one process, on which its holders' rows hang.

One lease serves all tasks that need the same time. Nobody keeps it alive in the background: an
operation looks whether it lasts long enough, and prolongs it only if not. It is granted for a third
more than is needed, so that is once in a third of the time, however many tasks come and go.

What counts is the time that the server has granted, from before it was asked, by a clock that
goes on while this host sleeps, as the server does.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import Any

from celery_dlock.core.lease import SECOND, unsleeping
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.etcd.client import EtcdClient, LeaseGone, rpc

#: Seconds that a lease of rows that are remembered outlasts the first of them, if that is
#: remembered as long: until then it serves others.
SHARED = 300

#: How often a lease is prolonged for one use, while leaders come and go.
ATTEMPTS = 4


class Leases:
    """Safe to share between threads."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._kept: dict[int, _Kept] = {}
        self._shared: dict[int, _Shared] = {}

    def lasting(self, lease: int, since: float, term: int | None = None) -> int:
        """The id of a lease that lasts for *lease* microseconds from *since*, and is kept so.

        With *term*, the leader of that term has said so: one that has lost its followers, and does
        not know it yet, prolongs what the next one lets end.
        """
        seconds = max(1, math.ceil(lease * 4 / 3 / SECOND))
        kept = self._kept.get(seconds)
        if kept is None:  # made only then: this is asked twice for each lock
            kept = self._kept.setdefault(seconds, _Kept(self._client, seconds))
        return kept.lasting_until(since + lease / SECOND, term)

    def ending(self, memory: int) -> int:
        """The id of a lease that ends by itself, when *memory* microseconds have passed."""
        seconds = max(1, math.ceil(memory / SECOND))
        shared = self._shared.setdefault(seconds, _Shared(self._client, seconds))
        return shared.lasting_until(unsleeping() + memory / SECOND)

    def gone(self) -> None:
        """The server did not know one of them: have each proved, or made, before it is used."""
        for lease in (*self._kept.values(), *self._shared.values()):
            lease.gone()

    def replace(self) -> None:
        """Make a new one instead of prolonging one; renewals move the rows that are in use.

        Others would stay for as long as their lease is prolonged.
        """
        for kept in self._kept.values():
            kept.outdated = True

    def retire(self, lease: int) -> None:
        """Let *lease* end: a row may still come to hang on it of which nobody will know.

        Renewals move the others to the next one.
        """
        for kept in self._kept.values():
            kept.retire(lease)

    def close(self) -> None:
        """Revoke those that are kept, and with them what hangs on them."""
        kept, self._kept = self._kept, {}
        for lease in kept.values():
            lease.revoke()


class _Lease:
    """A lease with the server, made when it is needed."""

    def __init__(self, client: EtcdClient, seconds: int) -> None:
        self._client = client
        self._seconds = seconds
        self._mutex = threading.Lock()
        self._id = 0
        self._good_until = -math.inf
        self._term = 0
        self.outdated = False

    def lasting_until(self, instant: float, term: int | None = None) -> int:
        """Its id; it is good until *instant* at least, on that clock."""
        with self._mutex:
            for _ in range(ATTEMPTS):
                if self._good_until >= instant and (term is None or term == self._term):
                    return self._id
                self._prolong(late=self._good_until < instant)
            raise BackendUnavailable(
                f"{self._client.place} ended a lease {ATTEMPTS} times that it had just prolonged: "
                "its answers take longer than a lease, or its members do not agree who leads"
            )

    def gone(self) -> None:
        self._good_until = -math.inf

    def retire(self, lease: int) -> None:
        with self._mutex:
            if self._id == lease:
                self._id, self._good_until = 0, -math.inf

    def _prolong(self, *, late: bool) -> None:
        """Let it last longer, or, unless it is *late*, be confirmed by another leader."""
        raise NotImplementedError

    def _grant(self, seconds: int) -> None:
        sent_at = unsleeping()
        answer = self._client.call("LeaseGrant", rpc.LeaseGrantRequest(TTL=seconds), repeats=True)
        self._id, self.outdated = int(answer.ID), False
        self._counts(sent_at, answer)

    def _counts(self, sent_at: float, answer: Any) -> None:
        self._good_until = sent_at + answer.TTL
        self._term = int(answer.header.raft_term)


class _Kept(_Lease):
    """A lease that is prolonged as long as somebody needs it."""

    def _prolong(self, *, late: bool) -> None:
        sent_at = unsleeping()
        is_replaced = late and self.outdated
        if sent_at < self._good_until and not is_replaced:  # or it may be ending just now
            request = rpc.LeaseKeepAliveRequest(ID=self._id)
            answer = self._client.call("LeaseKeepAlive", request, repeats=True)
            if answer.TTL > 0:
                self._counts(sent_at, answer)
                return
        self._grant(self._seconds)

    def revoke(self) -> None:
        with self._mutex:
            if self._id:
                with suppress(LeaseGone):
                    self._client.call(
                        "LeaseRevoke", rpc.LeaseRevokeRequest(ID=self._id), repeats=True
                    )
                self._id, self._good_until = 0, -math.inf


class _Shared(_Lease):
    """A lease that is left to end, and used as long as it is good for one row more."""

    def _prolong(self, *, late: bool) -> None:
        self._grant(self._seconds + min(self._seconds, SHARED))
