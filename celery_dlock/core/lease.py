"""What a holder knows of its lock: who owns it, which token orders it, until when to trust it.

``owner`` names the claim; ``fencing_token`` orders it against every other; ``trusted_until``
bounds it. The bound is the holder's own: monotonic, counted from *before* the request was sent,
less a margin for clocks that run at different speeds. A slow answer therefore cannot stretch it,
nor can a host that sleeps; after it the lock counts as lost even if the store cannot be reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from celery_dlock.core.checks import duration
from celery_dlock.core.state import Claim, Mode
from celery_dlock.errors import ConfigurationError, LockLost

SECOND = 1_000_000

#: Why a lock is lost by the clock alone.
NOT_RENEWED = "it was not renewed in time (the process was paused, or the lock store was slow)"

Monotonic = Callable[[], float]

#: Whether the store can be asked, waiting for it so many seconds at most.
Certain = Callable[[float], bool]

#: Makes the store keep these terms for so many seconds.
Extend = Callable[[Sequence["Term"], float], None]


#: A fencing token is ``epoch * 2**EPOCH_SHIFT + what the store issued``. Stores issue less than
#: 2**53 (microseconds since 1970 reach that in the year 2255), so 1,023 epochs fit below 2**63.
EPOCH_SHIFT = 53


class HolderRow(NamedTuple):
    """The row of one holder in its store's database, with the texts as they are there.

    ``is_in`` says whether the tables of the store with that name are the ones that it is in.
    """

    is_in: Callable[[str], bool]
    prefix: str
    key: str
    task: str
    nonce: str


#: The row of a claim that holds its key, for a fence; ``None`` if its store has none.
RowOf = Callable[[Claim], HolderRow | None]


#: Goes on while the host is suspended, where there is such a clock, and never steps.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def unsleeping() -> float:
    """Seconds since some instant, those included for which this host slept."""
    return time.clock_gettime(CLOCK)


def _cannot(terms: Sequence[Term], seconds: float) -> None:
    raise ConfigurationError("a lease that no store has granted cannot be extended")


def _no_row(claim: Claim) -> None:
    return None


def margin(ttl: float) -> float:
    """Seconds to distrust at the end of *ttl*: the drift allowance of the Redlock article."""
    return 0.01 * ttl + 0.002


def ttl_to_trust(seconds: float) -> float:
    """The ttl of which *seconds* are left when the margin is taken off."""
    return (seconds + 0.002) / 0.99


class Term:
    """One key, held by one claim since one grant. Only its end changes, and it changes here.

    ``ttl`` is for how many seconds one renewal is good.
    ``token`` is 0 for readers. ``resource`` is what a fenced write names: the key, and for the
    second and later slots of a ``Limit`` the slot, so that the name outlives a change of the limit.
    ``leaves`` says that the store may have been told that it is released; ``replaced`` is the id of
    the newer task for which it is lost.
    """

    __slots__ = (
        "_reason",
        "_untold",
        "claim",
        "key",
        "leaves",
        "monotonic",
        "replaced",
        "since",
        "slot",
        "token",
        "trusted_until",
        "ttl",
    )

    def __init__(
        self,
        claim: Claim,
        slot: int,
        token: int,
        sent_at: float,
        monotonic: Monotonic = unsleeping,
    ) -> None:
        self.claim = claim
        self.key: Final = claim.key
        self.ttl: Final = claim.ttl / SECOND
        self.slot = slot
        self.token = token
        self.since = sent_at
        self.monotonic = monotonic
        self.leaves = False
        self.replaced: str | None = None
        self._reason: str | None = None
        self._untold = ["that it is lost"]
        self.trusted_until = sent_at
        self.renewed(sent_at)

    @property
    def resource(self) -> str:
        return self.key if self.slot == 0 else f"{self.key}#{self.slot}"

    @property
    def issued(self) -> int:
        """The token as the store has it, without ``dlock_fencing_epoch``."""
        return self.token & ((1 << EPOCH_SHIFT) - 1)

    @property
    def uncertain(self) -> bool:
        """Whether its renewal is overdue: due with two thirds of its ttl left, it is not there with
        half of it left. Until ``trusted_until`` it can be trusted all the same.
        """
        return not self.lost and self.monotonic() >= self.trusted_until - self.ttl / 2

    @property
    def noticed(self) -> str | None:
        """Why it was lost, if that has been noticed: whatever the time is by now."""
        return self._reason

    def notice(self) -> str | None:
        """Look at the clock: why the lock can no longer be trusted, or ``None`` while it can."""
        if self._reason is None and self.monotonic() >= self.trusted_until:
            self._reason = NOT_RENEWED
        return self._reason

    lost = property(notice)

    def first_to_tell(self) -> bool:
        """Whether the caller is the first to tell its loss.

        The keeper and the thread that releases may both notice it, at the same time.
        """
        try:
            self._untold.pop()  # in one step, so one of two threads has it
        except IndexError:
            return False
        return True

    def renewed(self, sent_at: float, ttl: float | None = None) -> None:
        """The store extended the lease on a request sent at *sent_at* (monotonic seconds).

        *ttl* is for how long it was asked to, if not for the usual time.
        """
        ttl = ttl or self.ttl
        self.trusted_until = max(self.trusted_until, sent_at + ttl - margin(ttl))

    def lose(self, reason: str) -> None:
        """Give up trust for good; the first reason stays."""
        self._reason = self._reason or reason


class Lease:
    """The lock or locks that one execution holds, as its body sees them.

    A lease that was lost stays lost. Reading it costs no round trip.
    """

    __slots__ = ("_certain", "_extend", "_tokens", "guarantee", "own", "row_of", "terms", "ttl")

    def __init__(
        self,
        terms: tuple[Term, ...],
        guarantee: str,
        certain: Certain = lambda _: True,
        extend: Extend = _cannot,
        parents: Collection[str] = (),
        row_of: RowOf = _no_row,
    ) -> None:
        #: One for each key and each parent, in sorted order of the keys.
        self.terms: Final = terms
        #: Those of its keys, without their parents.
        self.own: Final = tuple([term for term in terms if term.key not in parents])
        #: Seconds that one renewal is good for.
        self.ttl: Final = min([term.ttl for term in terms], default=0.0)
        self.guarantee = guarantee
        self.row_of = row_of
        self._certain = certain
        self._extend = extend
        held_alone = [term for term in self.own if term.claim.mode is not Mode.SHARED]
        self._tokens = MappingProxyType({term.key: term.token for term in held_alone})

    @property
    def key(self) -> str:
        """The key; with several keys the first in sorted order."""
        return self.own[0].key

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys in sorted order, without their parents."""
        return tuple(term.key for term in self.own)

    @property
    def owner(self) -> str:
        """Names the claim, new for each delivery of a task."""
        return self.own[0].claim.owner

    @property
    def fencing_token(self) -> int:
        """The token of the one key that is held exclusively.

        Raises :exc:`~celery_dlock.ConfigurationError` with several keys (see
        :attr:`fencing_tokens`) and for a read lock, which has none.
        """
        tokens = self._tokens
        if len(tokens) != 1:
            why = "several keys are held: use fencing_tokens" if tokens else "a read lock has none"
            raise ConfigurationError(f"no single fencing token: {why}")
        return next(iter(tokens.values()))

    @property
    def fencing_tokens(self) -> Mapping[str, int]:
        """Key to token, for the keys held exclusively."""
        return self._tokens

    def remaining(self) -> float:
        """Seconds for which the lock can be trusted without a further renewal; 0 when lost."""
        left = [0.0 if term.lost else term.trusted_until - term.monotonic() for term in self.terms]
        return max(0.0, min(left, default=0.0))

    @property
    def lost(self) -> bool:
        return any(term.lost for term in self.terms)

    @property
    def uncertain(self) -> bool:
        """Whether the store has not confirmed the lock when it last should have.

        A renewal is overdue, and less than half of the ttl is left; or the connection by which the
        store keeps the lock is interrupted. It is held until :meth:`remaining` is over: go on with
        what can be undone, and begin nothing else. A lock that is lost is not uncertain any more.
        """
        if self.lost:
            return False
        return any(term.uncertain for term in self.terms) or not self._certain(0.0)

    @property
    def replaced(self) -> str | None:
        """The id of the newer task that asks this one to stop; ``None`` while there is none."""
        return next((term.replaced for term in self.terms if term.replaced), None)

    def check(self) -> None:
        """Raise :exc:`~celery_dlock.LockLost` if the lock can no longer be trusted.

        Some stores keep leases by a connection. If that is interrupted this call waits, until the
        store can be asked or the lock can no longer be trusted.
        """
        if not self._certain(self.remaining()):
            raise LockLost(self.key, "the connection to the store is interrupted")
        for term in self.terms:
            reason = term.lost
            if reason is not None:
                raise LockLost(term.key, reason)

    def extend(self, seconds: float) -> None:
        """Make the lock last for *seconds* from now without a renewal, in one round trip.

        Use it before a step that keeps this process from renewing, such as a long call of a C
        library that never lets another thread run. The lease is not renewed until that time is
        nearly over, and then as usual. It is never made shorter. If the process dies, others have
        to wait as long.

        Raises :exc:`~celery_dlock.LockLost` if the lock is lost, and
        :exc:`~celery_dlock.BackendUnavailable` if the store does not answer; then the lock is
        trusted no longer than before. Raises :exc:`~celery_dlock.ConfigurationError` for more time
        than the hard time limit of the task leaves, or without one ``dlock_max_hold``, and on a
        store without the trait ``lease-per-task``.
        """
        self._extend(self.terms, duration("extend()", seconds))

    def give_back(self) -> None:
        """Code that still has this lease must not trust it any more."""
        for term in self.terms:
            term.lose("it was released")

    def __repr__(self) -> str:
        state = "lost" if self.lost else f"{self.remaining():.1f} s"
        return f"<Lease {', '.join(self.keys)} of {self.owner}: {state}>"
