"""The store on etcd: one transaction takes a free key, and one gives it back.

What it does not give: a clock. How long a message has waited, or a call gone unanswered, goes by
the clocks of the hosts that ask. A holder's life does not: that hangs on a lease which the servers
count, in whole seconds.
"""

from __future__ import annotations

from typing import ClassVar, Self

from celery_dlock.backends.base import BackendOptions, Guarantee, Trait
from celery_dlock.backends.etcd_address import address_of
from celery_dlock.backends.etcd_connection import adapt_to_greenlets
from celery_dlock.backends.etcd_rows import EtcdRows
from celery_dlock.backends.guarded import GuardedBackend


class EtcdBackend(GuardedBackend):
    """All keys of one etcd, version 3.4 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {
            Trait.MULTI_PROCESS,
            Trait.MULTI_HOST,
            Trait.DURABLE,
            Trait.LEASE_PER_TASK,
            Trait.MONOTONE_FENCING,
            Trait.STRICT_FENCING,
        }
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 2**20  # of 1.5 MiB that a server takes in one request
    forks: ClassVar[bool] = False

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``etcd://[user:password@]host[:port][,host[:port]…]``, ``etcd+https://…`` with TLS; the
        options take ``ca_cert``, ``cert_cert``, ``cert_key``, ``timeout`` and ``grpc_options``.
        """
        address = address_of(url, options.driver)
        adapt_to_greenlets()
        return cls(EtcdRows(address, options.prefix, options.clock), options)
