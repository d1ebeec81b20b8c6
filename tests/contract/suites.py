"""The two parts of the contract that the stores of this library pass.

*Storage* is what a store can get wrong by itself, the contract that the package ships among it:
each store passes it. *Rules* are what the machine decides: they are run where they are written,
and those of *Taking* where a store has taking and leaving once more.
``tests/proofs/contract.toml`` says why of each class.
"""

from __future__ import annotations

from celery_dlock.testing.contract import (
    LockBackendContract,
    NoteStoreContract,
    SharedStoreContract,
)
from tests.contract.rules import (
    cooling,
    dead_letters,
    deploying,
    ending,
    holding,
    keeping,
    on_hold,
    outcomes,
    postponing,
    queueing,
    replacing,
    retrying,
    waking,
)
from tests.contract.storage import crowd as stored_crowd
from tests.contract.storage import dead_letters as stored_dead_letters
from tests.contract.storage import ending as stored_ending
from tests.contract.storage import holding as stored_holding
from tests.contract.storage import listing, noting, one_of_each, processes, swapping
from tests.contract.storage import queueing as stored_queueing
from tests.contract.storage import waking as stored_waking


class Taking(
    holding.Sharing,
    replacing.Replacing,
    queueing.Publishing,
    queueing.Shadows,
    keeping.KeepingTests,
    keeping.Reserving,
    retrying.Retries,
    outcomes.Outcomes,
    outcomes.Repeating,
    deploying.Deploying,
):
    """What the machine decides as a task takes, keeps and leaves its key."""


class Rules(
    Taking,
    cooling.CoolingDown,
    on_hold.Holds,
    queueing.QueueingTests,
    queueing.Places,
    ending.Endings,
    ending.Revoking,
    retrying.Failing,
    waking.Unanswered,
    waking.Pausing,
    postponing.Postponing,
    dead_letters.DeadLetters,
    dead_letters.Replaying,
    dead_letters.Discarding,
):
    """All that the machine decides."""


class OneOfEach(one_of_each.Grants, one_of_each.Waiting, one_of_each.Past):
    """One test of each operation and of each part of a key's state."""


class Storage(
    OneOfEach,
    stored_holding.Exclusion,
    stored_holding.Tokens,
    stored_holding.Renewal,
    stored_queueing.QueueingTests,
    stored_waking.SweepingTests,
    stored_ending.Finding,
    stored_dead_letters.DeadLetters,
    listing.KeysTests,
    listing.Listing,
    listing.Looking,
    swapping.Swapping,
    stored_crowd.Crowd,
    LockBackendContract,
):
    """What a store can get wrong by itself."""


class ManyServers(
    OneOfEach,
    stored_holding.Renewal,
    stored_waking.SweepingTests,
    stored_ending.Finding,
    stored_dead_letters.DeadLetters,
    listing.Listing,
    listing.Looking,
    swapping.Swapping,
    SharedStoreContract,
):
    """Over a store that is known: what is asked of several servers at once."""


class SharedStorage(
    processes.ProcessesTests,
    processes.Survivors,
    Storage,
    SharedStoreContract,
):
    """The same, and what several processes do to it."""


class Notes(noting.Noting, NoteStoreContract):
    """What is noted beside a key."""
