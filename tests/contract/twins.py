"""Two stores given the same operations at the same times, and compared after each.

Tokens come from different sources, so each store's tokens are numbered in the order in which they
were first given; a token that is not larger than all before it is a difference of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from celery_dlock.core.operations import Discard, OpenSlot, Operation, PutOnHold, Replay
from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Cause,
    Claim,
    Holder,
    KeyState,
    Mode,
    Outcome,
    Run,
    Same,
    WaitMode,
)
from celery_dlock.stores.base import LockBackend, Swept

KEY = "order:42"
SECOND = 1_000_000
DAY = 86_400 * SECOND

#: Whole seconds, so that ends are met exactly, from both sides.
_seconds = st.integers(0, 4).map(lambda n: n * SECOND)

_tasks = st.sampled_from("abc")

# Mostly one kind of claim, so that operations meet; the rest is what makes it hard.
claims = st.builds(
    Claim,
    key=st.just(KEY),
    task=_tasks,
    nonce=st.sampled_from("1112"),
    ttl=st.integers(1, 4).map(lambda n: n * SECOND),
    mode=st.sampled_from([*[Mode.EXCLUSIVE] * 3, Mode.SHARED, *[Mode.LIMITED] * 2]),
    limit=st.sampled_from([1, 2, 2, 3]),
    wait=st.sampled_from([WaitMode.QUEUE, WaitMode.QUEUE, *WaitMode]),
    patience=_seconds,
    done_ttl=st.sampled_from([0, 3 * SECOND]),
    cooldown=st.sampled_from([0, 0, 0, 2 * SECOND, 6 * SECOND]),
    gives_up=st.sampled_from([0, 0, 0, 2 * SECOND, 5 * SECOND, DAY]),
    max_waiting=st.sampled_from([0, 0, 0, 1, 2]),
    drop_oldest=st.booleans(),
    keep=st.sampled_from([False, False, True]),
    ordered=st.sampled_from([False, False, True]),
    shuts=st.booleans(),
    delay=st.sampled_from([0, 0, 2 * SECOND]),
    gives_way=st.booleans(),
    supersedes=st.booleans(),
    name=st.sampled_from(["", "sync"]),
    entry=st.sampled_from([0, 1, 1, 2]),
    keyset=st.sampled_from(["", "", "ab"]),
    successor=st.sampled_from(["", "", "", "c", "d"]),
    elsewhere=st.sampled_from(["", "", "another key"]),
    again=st.booleans(),
    begun=st.sampled_from([True, True, False]),
)
# Those that shortcuts know, of which there are hardly any among the others; and they meet.
_ways = [WaitMode.NOT, WaitMode.LOOK, *[WaitMode.PLACE] * 4, WaitMode.QUEUE]
_plain_claims = st.builds(
    Claim,
    st.just(KEY),
    st.sampled_from("aabcd"),
    st.sampled_from("1112"),
    st.just(9 * SECOND),
    st.sampled_from([*[Mode.EXCLUSIVE] * 5, Mode.SHARED, Mode.LIMITED]),
    st.just(2),
    wait=st.sampled_from(_ways),
    patience=st.sampled_from([2 * SECOND, 4 * SECOND]),
    gives_up=st.sampled_from([0, 0, DAY]),
    max_waiting=st.sampled_from([0, 0, 1]),
    drop_oldest=st.booleans(),
    entry=st.sampled_from([0, 1, 1]),
)

_messages = st.none() | st.binary(min_size=1, max_size=8)
_enter = st.tuples(st.just("enter"), claims, _messages)
_leave = st.tuples(st.just("leave"), claims, st.sampled_from(list(Outcome)), _messages)
_renew = st.tuples(st.just("renew"), st.lists(claims, max_size=3))
_cancel = st.tuples(st.sampled_from(["cancel", "hand_back"]), st.just(KEY), _tasks)
_replay = st.builds(Replay, st.just(KEY), _tasks)
_discard = st.builds(Discard, st.just(KEY), _tasks, st.sampled_from([0, 5 * SECOND, DAY]))
_dead_letter = st.tuples(st.just("dead_letter"), st.just(KEY), _tasks, st.sampled_from(list(Cause)))
_postpone = st.tuples(
    *(st.just("postpone"), claims, st.binary(min_size=1, max_size=8)),
    *(st.integers(1, 3).map(lambda n: n * SECOND), st.integers(3, 8).map(lambda n: n * SECOND)),
)
_holds = st.sampled_from(["", "1", "2"])
_hold = st.builds(
    PutOnHold,
    st.just(KEY),
    was=_holds,
    name=_holds,
    by=st.sampled_from(["ann", "bob"]),
    because=st.just("why"),
    lasts=st.sampled_from([0, 2 * SECOND, 6 * SECOND]),
).filter(lambda hold: bool(hold.name) is bool(hold.lasts))
_open = st.sampled_from("12").map(partial(OpenSlot, KEY))


def _applied(operation: st.SearchStrategy[Operation[Any]]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just("apply"), operation)


_reap = st.just(("reap", KEY))
_sweep = st.tuples(st.just("sweep"), st.sampled_from([1, 100]))
_pass = st.tuples(
    st.just("pass"),
    st.sampled_from([SECOND, 1, SECOND - 1, SECOND, *(n * SECOND for n in (2, 5, 31, 700)), DAY]),
)

#: Operations of one commit, which is there even when nothing changes. A replay is left out: that a
#: task is forgotten to be done moves nothing else, so who overlaps with it may have come before it.
single = st.one_of(_enter, _enter, _leave, _cancel, _dead_letter, _postpone, _applied(_hold))

operations = st.one_of(
    *(_reap, _sweep, _enter, _enter, _leave, _pass, _renew, _cancel, _dead_letter, _postpone),
    *(_applied(_replay), _applied(_hold), _applied(_discard), _applied(_open)),
)

_plain_enter = st.tuples(st.just("enter"), _plain_claims, _messages)
_plain_leave = st.tuples(st.just("leave"), _plain_claims, st.just(Outcome.OVER), _messages)
_brief_pass = st.tuples(st.just("pass"), st.just(SECOND))
plain_operations = st.one_of(*[_plain_enter] * 5, *[_brief_pass] * 2, _plain_leave, _reap)


class Clock:
    """Microseconds that move only when told to; they start where floats lose digits."""

    def __init__(self) -> None:
        self.now = 1_795_166_707_336_123

    def __call__(self) -> int:
        return self.now


#: Who waits behind a holder: in which mode and way, and for how long a place is kept.
Crowd = list[tuple[Mode, WaitMode, int]]


def crowds(most: int) -> st.SearchStrategy[Crowd]:
    """About as many as an operation loads, or more, up to *most*."""
    one = st.tuples(
        st.sampled_from([Mode.SHARED, Mode.SHARED, Mode.EXCLUSIVE]),
        st.sampled_from([WaitMode.QUEUE, WaitMode.PLACE]),
        st.sampled_from([2 * SECOND, 60 * SECOND]),
    )
    return st.lists(one, min_size=WINDOW - 2, max_size=most)


def crowded(limit: int, crowd: Crowd, ops: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """*ops*, behind the operations that have *crowd* wait for a key with a holder."""
    holder = Claim(KEY, "a", "1", ttl=4 * SECOND)
    waiting = [
        Claim(KEY, f"w{n}", "1", 9 * SECOND, mode, limit, wait, patience)
        for n, (mode, wait, patience) in enumerate(crowd)
    ]
    enter = [("enter", claim, b"message") for claim in (holder, *waiting)]
    # The last of the crowd comes again: it stands where its own operation does not look.
    return [*enter, *ops, ("enter", waiting[-1], None), ("reap", KEY), ("reap", KEY)]


@dataclass
class Twin:
    """A store, and the tokens it has given, which grow."""

    store: LockBackend
    tokens: list[int] = field(default_factory=list)

    def apply(self, kind: str, *args: Any) -> object:
        if kind == "renew":
            args = ([self._as_taken(claim) for claim in args[0]],)
        return self._comparable(getattr(self.store, kind)(*args))

    def _as_taken(self, claim: Claim) -> Claim:
        """What is renewed is the claim that was granted: it gives way if its holder does."""
        owner = (claim.task, claim.nonce)
        holders = [h for h in self.store.peek(KEY).holders if (h.task, h.nonce) == owner]
        return replace(claim, gives_way=holders[0].replaced_by is not None) if holders else claim

    def state(self, now: int) -> KeyState:
        """What the store says. Lapsed places may be cleared late, and ranks only order."""
        state = self.store.peek(KEY)
        live = [e for e in state.waiting if e.expires is None or e.expires > now]
        waiting = tuple(replace(entry, rank=n) for n, entry in enumerate(live))
        holders = tuple(map(self._holder, state.holders))
        return replace(state, holders=holders, waiting=waiting, first=0, last=0, lost=())

    def is_seen_as_it_is(self, now: int) -> bool:
        """Whether a look tells what the whole key says, as far as it tells anything."""
        (seen,), state = self.store.look([KEY]), self.store.peek(KEY)
        live = [e for e in state.waiting if e.expires is None or e.expires > now]
        head = tuple(live[: len(seen.waiting)])
        enough = min(WINDOW, len(live)) if len(state.waiting) <= WINDOW else 0
        known = replace(state, waiting=head, first=seen.first, last=seen.last, lost=seen.lost)
        return seen == known and len(seen.waiting) >= enough

    def _comparable(self, reply: Any) -> object:
        if isinstance(reply, list):
            return reply
        if isinstance(reply, Swept):  # a renewal may leave the next instant where it was
            return reply.wakes, calls(reply), reply.next_in is None
        match reply.verdict:
            case Run(slot, token):
                reply = replace(reply, verdict=Run(slot, self._number(token)))
            case Same(holder, left):
                reply = replace(reply, verdict=Same(self._holder(holder), left))
            case Busy(Holder() as holder):
                reply = replace(reply, verdict=replace(reply.verdict, holder=self._holder(holder)))
        return reply, calls(reply)

    def _holder(self, holder: Holder) -> Holder:
        return replace(holder, token=self._number(holder.token))

    def _number(self, token: int) -> int:
        if token == 0:
            return 0
        if token not in self.tokens:
            assert token > max(self.tokens, default=0), "a later token must be larger"
            self.tokens.append(token)
        return self.tokens.index(token) + 1


def calls(reply: Any) -> list[int]:
    """How often each of the wakes was woken: two wakes are equal without that."""
    return [wake.woken for wake in reply.wakes]


def assert_alike(one: Twin, other: Twin, clock: Clock, ops: list[tuple[Any, ...]]) -> None:
    """Apply *ops* to both; each answer and each state in between must be the same.

    So must the dead letters whenever those of *one* have changed, and at the end: a list of all
    costs a server as much as the rest.
    """
    dead = one.store.dead()
    for op in ops:
        if op[0] == "pass":
            clock.now += op[1]
            continue
        assert other.apply(*op) == one.apply(*op), op
        assert other.state(clock.now) == one.state(clock.now), op
        before, dead = dead, one.store.dead()
        assert dead == before or other.store.dead() == dead, op
    assert other.store.dead() == dead
    assert one.is_seen_as_it_is(clock.now)
    assert other.is_seen_as_it_is(clock.now)
