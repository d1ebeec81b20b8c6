"""The store on ZooKeeper: what was confirmed stays, and a token is the number of a transaction.

What it does not give: a lease time for each task. A process has one session; every lock of it is
held for as long as that lives, and all are lost with it. Nor speed: each commit waits for the disks
of a majority, and without a majority nothing is taken or given back.
"""

from __future__ import annotations

from typing import ClassVar, Self

from celery_dlock.backends.base import BackendOptions, Guarantee, Trait
from celery_dlock.backends.guarded import GuardedBackend
from celery_dlock.backends.zookeeper_rows import ZooKeeperRows
from celery_dlock.backends.zookeeper_url import place_of


class ZooKeeperBackend(GuardedBackend):
    """All keys of one prefix below one folder of a ZooKeeper, version 3.5 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {
            Trait.MULTI_PROCESS,
            Trait.MULTI_HOST,
            Trait.DURABLE,
            Trait.MONOTONE_FENCING,
            Trait.STRICT_FENCING,
        }
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 2**19  # half of what a server takes in one request

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``zookeeper://[user:password@]host[:port][,host[:port]…][/folder]``."""
        return cls(ZooKeeperRows(place_of(url, options), options), options)
