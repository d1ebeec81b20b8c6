"""What every lock store must do, as tests that run against a store of anybody's.

The rules themselves are pure functions with tests of their own; this suite proves that a store
commits them: atomically, durably as far as it promises, and for each key apart.
"""

from __future__ import annotations

from celery_dlock.testing.contract.burying import Burying
from celery_dlock.testing.contract.crowd import Crowd
from celery_dlock.testing.contract.endings import Endings
from celery_dlock.testing.contract.exclusion import Exclusion
from celery_dlock.testing.contract.keeping import Keeping
from celery_dlock.testing.contract.keys import Keys
from celery_dlock.testing.contract.listing import Listing
from celery_dlock.testing.contract.looking import Looking
from celery_dlock.testing.contract.noting import Noting
from celery_dlock.testing.contract.outcomes import Outcomes
from celery_dlock.testing.contract.places import Places
from celery_dlock.testing.contract.processes import Processes
from celery_dlock.testing.contract.publishing import Publishing
from celery_dlock.testing.contract.queueing import Queueing
from celery_dlock.testing.contract.renewal import Renewal
from celery_dlock.testing.contract.replaying import Replaying
from celery_dlock.testing.contract.reserving import Reserving
from celery_dlock.testing.contract.revoking import Revoking
from celery_dlock.testing.contract.shadows import Shadows
from celery_dlock.testing.contract.sharing import Sharing
from celery_dlock.testing.contract.survivors import Survivors
from celery_dlock.testing.contract.sweeping import Sweeping
from celery_dlock.testing.contract.tokens import Tokens

__all__ = ["LockBackendContract", "SharedStoreContract"]


class LockBackendContract(
    Exclusion,
    Tokens,
    Renewal,
    Sharing,
    Queueing,
    Endings,
    Sweeping,
    Shadows,
    Keeping,
    Publishing,
    Reserving,
    Revoking,
    Burying,
    Replaying,
    Places,
    Outcomes,
    Keys,
    Noting,
    Listing,
    Looking,
    Crowd,
):
    """Subclass it, name the subclass ``Test…``, and say which store it is about::

        class TestMyStore(LockBackendContract):
            backend_class = MyBackend

            @pytest.fixture
            def url(self) -> str:
                return "mystore://127.0.0.1:4711"

    ``backend_class`` is the :class:`~celery_dlock.backends.base.LockBackend`, which must be
    importable by name, in a spawned process too. ``url`` is a fixture with what its ``from_url``
    takes; it may start a server, or skip where there is none. Each test uses a prefix of its own,
    so nothing needs to be emptied in between. The store must take ``BackendOptions.clock`` and go
    by it in every respect (leases, places, calls, reservations, memory of finished tasks): the
    suite moves that clock by days, and never sleeps. Override the ``options`` fixture to pass
    driver options.

    A store with the trait ``MULTI_PROCESS`` subclasses :class:`SharedStoreContract` instead.
    """


class SharedStoreContract(LockBackendContract, Processes, Survivors):
    """The same, and what a store has to do when several processes share it."""
