"""What every lock store must do, as tests that run against a store of anybody's.

The rules themselves are pure functions with tests of their own; this suite proves that a store
commits them: atomically, durably as far as it promises, and for each key apart.
"""

from __future__ import annotations

from celery_dlock.testing.contract.cooling import Cooling
from celery_dlock.testing.contract.crowd import Crowd
from celery_dlock.testing.contract.dead_letters import DeadLetters, Discarding, Replaying
from celery_dlock.testing.contract.ending import Endings, Revoking
from celery_dlock.testing.contract.holding import Exclusion, Renewal, Sharing, Tokens
from celery_dlock.testing.contract.keeping import KeepingTests, Reserving
from celery_dlock.testing.contract.listing import KeysTests, Listing, Looking
from celery_dlock.testing.contract.newest import Postponing, Rewriting
from celery_dlock.testing.contract.noting import Noting
from celery_dlock.testing.contract.on_hold import Holds
from celery_dlock.testing.contract.outcomes import Outcomes, Repeating
from celery_dlock.testing.contract.processes import ProcessesTests, Survivors
from celery_dlock.testing.contract.queueing import Places, Publishing, QueueingTests, Shadows
from celery_dlock.testing.contract.replacing import Replacing
from celery_dlock.testing.contract.swapping import Swapping
from celery_dlock.testing.contract.waking import Pausing, SweepingTests, Unanswered

__all__ = ["LockBackendContract", "NoteStoreContract", "SharedStoreContract"]


class LockBackendContract(
    Exclusion,
    Tokens,
    Renewal,
    Sharing,
    Cooling,
    Holds,
    Replacing,
    QueueingTests,
    Endings,
    Unanswered,
    Pausing,
    SweepingTests,
    Shadows,
    KeepingTests,
    Publishing,
    Rewriting,
    Postponing,
    Reserving,
    Revoking,
    DeadLetters,
    Replaying,
    Discarding,
    Places,
    Outcomes,
    Repeating,
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
    suite moves that clock by days, and never sleeps. Override the ``options`` fixture to pass
    driver options.

    A store with the trait ``MULTI_PROCESS`` subclasses :class:`SharedStoreContract` instead, and
    one that keeps notes for beat :class:`NoteStoreContract` as well.
    """


class SharedStoreContract(LockBackendContract, ProcessesTests, Survivors):
    """The same, and what a store has to do when several processes share it."""


class NoteStoreContract(Noting):
    """What a :class:`~celery_dlock.stores.base.NoteStore` has to do besides."""
