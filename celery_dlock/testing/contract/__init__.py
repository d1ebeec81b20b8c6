"""What a lock store must do, as tests that run against a store of anybody's.

The rules are pure functions with tests of their own. This suite shows what a store can get wrong
by itself: tokens, atomicity, names and messages, lists, leases that end, and processes that die.
"""

from __future__ import annotations

import pytest

_PARTS = ("crowd", "holding", "listing", "noting", "processes", "queueing", "swapping", "words")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from celery_dlock.testing.contract.crowd import Crowd  # noqa: E402
from celery_dlock.testing.contract.holding import Exclusion, Renewal, Tokens  # noqa: E402
from celery_dlock.testing.contract.listing import KeysTests, Listing, Looking  # noqa: E402
from celery_dlock.testing.contract.noting import Noting  # noqa: E402
from celery_dlock.testing.contract.processes import ProcessesTests  # noqa: E402
from celery_dlock.testing.contract.queueing import QueueingTests, SweepingTests  # noqa: E402
from celery_dlock.testing.contract.swapping import Swapping  # noqa: E402

__all__ = ["LockBackendContract", "NoteStoreContract", "SharedStoreContract"]


class LockBackendContract(
    Exclusion,
    Tokens,
    Renewal,
    QueueingTests,
    SweepingTests,
    KeysTests,
    Listing,
    Looking,
    Swapping,
    Crowd,
):
    """Subclass it, name the subclass ``Test…``, and say which store it is about::

        class TestMyStore(LockBackendContract):
            backend_class = MyBackend

            @pytest.fixture
            def url(self) -> str:
                return "mystore://127.0.0.1:4711"

    ``backend_class`` is the :class:`~celery_dlock.stores.base.LockBackend`, which must be
    importable by name, in a spawned process too. ``url`` is a fixture with what its ``from_url``
    takes; it may start a server, or skip where there is none. Each test uses a prefix of its own,
    so nothing needs to be emptied in between. The store must take ``BackendOptions.clock`` and go
    by it in every respect (leases, places, calls, reservations, memory of finished tasks): the
    suite moves that clock by days, and never sleeps. One test goes by the store's own clock.
    Override the ``options`` fixture to pass driver options.

    A store with the trait ``MULTI_PROCESS`` subclasses :class:`SharedStoreContract` instead, and
    one that keeps notes for beat :class:`NoteStoreContract` as well.
    """


class SharedStoreContract(LockBackendContract, ProcessesTests):
    """The same, and what a store has to do when several processes share it."""


class NoteStoreContract(Noting):
    """What a :class:`~celery_dlock.stores.base.NoteStore` has to do besides."""
