"""Sequences that random operations meet too seldom; each caught a planted defect they missed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import Discard, PutOnHold, Replay
from celery_dlock.core.state import WINDOW, Cause, Claim, Mode, Outcome, WaitMode
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from tests.contract.twins import KEY, SECOND

Operations = list[tuple[Any, ...]]

QUEUE, ENQUEUE, PLACE, LOOK = WaitMode.QUEUE, WaitMode.ENQUEUE, WaitMode.PLACE, WaitMode.LOOK
REAP = ("reap", KEY)
SWEEP = ("sweep", 100)


def _claim(task: str, wait: WaitMode = WaitMode.NOT, nonce: str = "1", **others: Any) -> Claim:
    if "limit" in others:
        others.setdefault("mode", Mode.LIMITED)
    return Claim(KEY, task, nonce, ttl=4 * SECOND, wait=wait, patience=60 * SECOND, **others)


def _enter(claim: Claim, message: str = "") -> tuple[Any, ...]:
    return ("enter", claim, (message or claim.task).encode())


def _leave(claim: Claim, outcome: Outcome = Outcome.OVER) -> tuple[Any, ...]:
    return ("leave", claim, outcome, None)


def _pass(seconds: int) -> tuple[Any, ...]:
    return ("pass", seconds * SECOND)


def _done_twice() -> Operations:
    """The second time does not lengthen the memory of the first."""
    claim = _claim("a", done_ttl=3 * SECOND)
    leave = _leave(claim, Outcome.DONE)
    return [_enter(claim), leave, _pass(2), leave, _pass(1), _enter(claim)]


def _writer_ahead() -> Operations:
    """A reader does not overtake a writer that has a place."""
    holder, writer = _claim("a"), _claim("b", PLACE)
    reader = _claim("c", PLACE, mode=Mode.SHARED)
    crowd = [_enter(holder), _enter(writer), _enter(reader)]
    return [*crowd, _leave(holder), _enter(reader), _enter(writer)]


def _never_answered() -> Operations:
    """The pause between two calls stops growing."""
    return [_enter(_claim("a")), _enter(_claim("b", QUEUE)), *[_pass(700), REAP] * 12]


def _dies_again_and_again() -> Operations:
    """A task whose runs are lost is dead-lettered with its message, and may be replayed."""
    mine = _claim("a", QUEUE, keep=True)
    dies = [_enter(mine), _leave(mine, Outcome.ABANDONED)]
    again = [("apply", Replay(KEY, "a")), ("apply", Replay(KEY, "a")), _enter(mine)]
    return [*dies * MAX_LOST_RUNS, _enter(mine), _enter(_claim("b", QUEUE)), *again]


def _dies_and_is_not_dead_lettered() -> Operations:
    """Who was woken to end is ended, and a copy of who runs once more waits for how that ends."""
    mine = _claim("a", QUEUE, keep=True)
    dies = [_enter(mine), _leave(mine, Outcome.ABANDONED)] * MAX_LOST_RUNS
    ends = [("cancel", KEY, "a"), _enter(mine), _leave(mine, Outcome.DONE)]
    return [*dies, *ends, *dies, _enter(_claim("a")), _enter(_claim("a", QUEUE, "2"))]


def _nobody_hears_that_it_runs() -> Operations:
    """As often as it may be lost, and once more; then it is lost for good."""
    mine = _claim("a", QUEUE, keep=True)
    unheard = [_enter(mine), _leave(mine, Outcome.UNUSED)]
    dies = [_enter(mine), _leave(mine, Outcome.ABANDONED)]
    return [*unheard * (MAX_LOST_RUNS + 1), *dies * MAX_LOST_RUNS, _enter(mine)]


def _dies_before_it_waits() -> Operations:
    """It is dead-lettered with what is delivered, also if it only looks; its count is forgotten."""
    mine, looks = _claim("a", QUEUE), _claim("a", LOOK)
    dies = [_enter(mine), _leave(mine, Outcome.ABANDONED)]
    dead = [_enter(looks, "delivered"), _enter(mine, "again"), ("apply", Replay(KEY, "a"))]
    dies = [*dies * (MAX_LOST_RUNS - 1), _enter(mine), _pass(4)]
    return [*dies, *dead, _leave(mine), *dies, _enter(_claim("a", ENQUEUE)), _enter(mine)]


def _nobody_reads_it() -> Operations:
    """A message that is woken in vain is dead-lettered, and the next one is woken."""
    holder = _claim("a")
    in_vain = [("dead_letter", KEY, "b", Cause.UNREADABLE), _pass(700), REAP]
    queue = [_enter(holder), _enter(_claim("b", QUEUE)), _enter(_claim("c", QUEUE))]
    queue.append(_leave(holder, Outcome.DONE))
    return [*queue, *in_vain * (WAKES_BEFORE_DEAD + 1), ("apply", Replay(KEY, "b"))]


def _dead_and_about() -> Operations:
    """A dead reader's message waits again, or its task has a place or a message meanwhile."""
    holder, reader = _claim("a"), _claim("b", QUEUE, mode=Mode.SHARED, limit=7)
    dies = [_enter(holder), _enter(reader, ";,\x00}{"), _leave(holder), *[_pass(700), REAP] * 4]
    dies.append(("dead_letter", KEY, "b", Cause.UNKNOWN_TASK))
    replay = [("apply", Replay(KEY, "b")), _leave(holder), _enter(reader), _leave(reader)]
    operations = [*dies, *replay]
    for wait in (PLACE, QUEUE):
        again = _enter(_claim("b", wait), "again")
        operations += [*dies, _enter(holder), again, *replay, _leave(_claim("b"))]
    # Behind others; and although it is done, or just because
    done = _leave(_claim("b", done_ttl=9 * SECOND), Outcome.DONE)
    waits = [
        _enter(holder),
        _enter(_claim("c", QUEUE)),
        done,
        *replay,
        _leave(_claim("c")),
        *replay,
    ]
    comes = [_enter(reader), ("apply", Replay(KEY, "b")), _enter(reader)]
    return [*operations, *dies, *waits, done, *comes]


def _dead_and_discarded() -> Operations:
    """It is done without having run, for a while; or another message of its task waits."""
    holder, again = _claim("a"), _enter(_claim("b", QUEUE), "again")
    dies = [_enter(holder), _enter(_claim("b", QUEUE)), _leave(holder), *[_pass(700), REAP] * 4]
    dies.append(("dead_letter", KEY, "b", Cause.UNKNOWN_TASK))
    discarded = ("apply", Discard(KEY, "b", 9 * SECOND))
    forgotten = [_pass(10), *dies, ("apply", Discard(KEY, "b", 0)), again, _leave(_claim("b"))]
    waits = [*dies, _enter(holder), again, discarded, discarded, _leave(holder)]
    return [*dies, discarded, again, ("apply", Replay(KEY, "b")), *forgotten, *waits]


def _kept() -> Operations:
    """The first message is kept; it lies at the head and outlasts its patience."""
    mine = _claim("a", QUEUE, keep=True, gives_up=SECOND)
    called = [_enter(_claim("h")), _enter(mine, "first"), _leave(_claim("h"))]
    runs = [
        _enter(mine, "second"),
        _enter(_claim("a", QUEUE, "2"), "third"),
        _enter(_claim("a", LOOK)),
    ]
    waits = [_enter(_claim("b", QUEUE)), _pass(2), REAP, ("renew", [mine]), _pass(3), SWEEP]
    again = [_pass(1), SWEEP, _pass(5), SWEEP, _enter(mine), _leave(mine), REAP]
    return [*called, *runs, *waits, *again]


def _kept_counts_as_nothing() -> Operations:
    """Neither for those who start beside it, nor for those who wait, nor as the oldest."""
    first, second = (_claim(task, QUEUE, keep=True, limit=2) for task in "ab")
    few: dict[str, Any] = {"limit": 2, "max_waiting": 1}
    waits = [_enter(_claim("c", wait, **few)) for wait in (LOOK, WaitMode.NOT, PLACE, QUEUE)]
    full = [
        _enter(_claim("d", QUEUE, **few)),
        _enter(_claim("d", ENQUEUE, drop_oldest=True, **few)),
    ]
    return [_enter(first), _enter(_claim("n")), _enter(second), *waits, *full, _leave(first)]


def _a_shadow_counts_as_nothing() -> Operations:
    """Nor does the duplicate of the holder, for whoever is refused beside it."""
    waits = [_enter(_claim("b", wait)) for wait in (WaitMode.NOT, LOOK, PLACE, PLACE)]
    return [_enter(_claim("a")), _enter(_claim("a", QUEUE, nonce="2")), *waits]


def _held_in_another_way() -> Operations:
    """By whoever takes its turn, and so are those who wait behind it."""
    work: dict[str, Any] = {"name": "work", "entry": 1}
    waits = [_enter(_claim(task, QUEUE, limit=3, **work)) for task in "bcd"]
    turn = _claim("b", QUEUE, **work)
    return [_enter(_claim("a")), *waits, _leave(_claim("a")), _enter(turn), _leave(turn), SWEEP]


def _room_beside_one_that_is_kept() -> Operations:
    """Its message does not wait, so who comes with room beside it runs."""
    return [_enter(_claim(task, QUEUE, keep=task == "a", limit=2)) for task in "aw"]


def _handed_on_by_one_that_is_done() -> Operations:
    """A copy of it is dropped although its key went to the next one at once."""
    mine = _claim("a", done_ttl=3 * SECOND)
    return [_enter(mine), _enter(_claim("w", QUEUE)), _leave(mine, Outcome.DONE), _enter(mine)]


def _kept_in_turn() -> Operations:
    """A turn that does not fit any more gives its message back, and who repeats keeps it."""
    mine, other = (_claim(task, QUEUE, keep=True, limit=2) for task in "ab")
    holder = _claim("h", limit=2)
    called = [_enter(holder), _enter(mine), _enter(other), _leave(mine, Outcome.REPEAT)]
    lowered = _enter(_claim("a", QUEUE, "2", keep=True), "second")
    return [*called, lowered, _leave(holder), _leave(other), _enter(mine), _pass(4), SWEEP]


def _revoked() -> Operations:
    """Who waits, who was woken, who ends already, who runs, who is kept and who has a place."""
    cancel = [("cancel", KEY, task) for task in "abcdp"]
    runs = [_enter(_claim("a", QUEUE, keep=True)), _enter(_claim("p", PLACE))]
    late = _enter(_claim("d", QUEUE, gives_up=SECOND))
    waits = [_enter(_claim("b", QUEUE)), _enter(_claim("c", QUEUE)), late, _pass(1), REAP]
    ends = [_enter(_claim(task, QUEUE)) for task in "bcd"]
    # The key is reserved for the place, and revoked is who was woken behind it
    again = [_enter(_claim("e", QUEUE)), _enter(_claim("f", QUEUE)), _leave(_claim("a", QUEUE))]
    called = [*cancel, _enter(_claim("p")), _leave(_claim("p")), ("cancel", KEY, "e"), REAP]
    return [*runs, *waits, *cancel, *ends, *cancel, _pass(2), *again, *called, _pass(700), SWEEP]


def _published() -> Operations:
    """A publisher does not take what is free, nor its own turn, nor end what ends."""
    late = _claim("b", ENQUEUE, gives_up=SECOND)
    queue = [_enter(_claim("a", ENQUEUE)), _enter(_claim("a", ENQUEUE, "2")), _enter(late)]
    return [*queue, _pass(1), REAP, _enter(late), _enter(_claim("b", QUEUE)), _enter(_claim("a"))]


def _published_while_it_runs() -> Operations:
    """Its message is a shadow, which is woken when the run was lost; a look is told the same."""
    mine, again = _claim("a", QUEUE, done_ttl=9 * SECOND), _claim("a", ENQUEUE, "2")
    looks = [_enter(_claim("a", LOOK, "3")), _enter(again), _enter(_claim("a", LOOK, "3"))]
    lost = [_pass(4), SWEEP, _enter(again), _leave(mine, Outcome.DONE), _enter(again)]
    return [_enter(mine), *looks, *lost]


def _published_where_it_is_reserved() -> Operations:
    """Its place before a message becomes a message, also where no more of them may wait."""
    holder, waits = _claim("a"), [_enter(_claim("b", PLACE))]
    waits += [_enter(_claim(task, QUEUE)) for task in "cd"]
    published = [_enter(_claim("b", ENQUEUE, max_waiting=1)), _enter(_claim("b", QUEUE))]
    return [_enter(holder), *waits, _leave(holder), ("cancel", KEY, "b"), *published, REAP]


def _at_the_head() -> Operations:
    """A step of a chain is next: before a full queue, a place of its own, and who had started."""
    mine, head = _claim("a", done_ttl=9 * SECOND, successor="c"), WaitMode.HEAD
    few: dict[str, Any] = {"max_waiting": 1, "name": "step"}
    waits = [
        _enter(_claim("b", QUEUE)),
        _enter(_claim("c", PLACE)),
        _enter(_claim("c", head, **few)),
    ]
    lost = [_enter(_claim("s")), _leave(_claim("s"), Outcome.ABANDONED)]
    comes = [_enter(_claim("s", QUEUE)), _enter(_claim("c", head, "2"), "again")]
    ends = [_leave(mine, Outcome.DONE), _enter(_claim("c", QUEUE)), _enter(_claim("c", head, "3"))]
    gone = [_leave(_claim("c"), Outcome.DONE), _enter(_claim("s", QUEUE)), _leave(_claim("s"))]
    first = [*lost, _enter(mine), *waits, *comes, *ends, REAP, *gone, _enter(_claim("b", QUEUE))]
    dies = [
        _leave(_claim("b")),
        _enter(_claim("d")),
        *waits[:1],
        _enter(_claim("e", head)),
        _pass(4),
    ]
    return [*first, *dies, SWEEP, _enter(_claim("e", QUEUE)), _enter(_claim("f", head)), REAP]


def _reserved() -> Operations:
    """A retry finds its key reserved, whatever it does when it is taken; or it comes too late."""
    mine = _claim("a", QUEUE, successor="c", limit=2)
    operations: Operations = []
    for retry in (QUEUE, ENQUEUE, LOOK, PLACE, WaitMode.NOT):
        taken = [_enter(mine), _enter(_claim("h", limit=2)), _enter(_claim("b", QUEUE, limit=2))]
        left = [_leave(mine), ("cancel", KEY, "c"), _enter(_claim("c", retry, limit=2)), REAP]
        gone = [_leave(_claim(task)) for task in "bch"]
        operations += [*taken, *left, *gone, *taken, _leave(mine), _pass(60), SWEEP, *gone]
    return operations


def _reserved_for_readers() -> Operations:
    """Readers come in beside what is reserved, and who has lost its lock reserves nothing."""
    mine = _claim("a", successor="c", mode=Mode.SHARED)
    left = [_enter(mine), _leave(mine), _enter(_claim("r", mode=Mode.SHARED)), _enter(_claim("w"))]
    return [*left, _leave(_claim("r")), _pass(60), _leave(mine), _enter(_claim("w"))]


def _retry_was_faster() -> Operations:
    """It waits, or has a place, before its forerunner has left; and comes twice."""
    mine = _claim("a", successor="c")
    comes = [_enter(_claim("c", QUEUE, "1")), _enter(_claim("c", QUEUE, "2"))]
    gone = [_leave(_claim(task, nonce=nonce)) for task in "bc" for nonce in "12"]
    operations: Operations = []
    for retry in (QUEUE, ENQUEUE, PLACE):
        waits = [_enter(_claim("b", QUEUE)), _enter(_claim("c", retry), "retry")]
        operations += [_enter(mine), *waits, _leave(mine), REAP, *comes, _pass(60), SWEEP, *gone]
    return operations


def _retry_was_faster_still() -> Operations:
    """It runs, or was woken, in the other slot before its forerunner has left."""
    mine, retry = _claim("a", successor="c", limit=2), _claim("c", QUEUE, limit=2)
    other, again = _claim("h", limit=2), _claim("c", QUEUE, "2", limit=2)
    runs = [_enter(mine), _enter(retry), _leave(mine), _enter(again), _enter(other), _leave(other)]
    gone = [_leave(retry), _pass(60), REAP]
    called = [_enter(mine), _enter(other), _enter(retry), _leave(other), _leave(mine)]
    return [*runs, *gone, *called, _enter(retry), _enter(_claim("b", limit=2)), _enter(again)]


def _replaced() -> Operations:
    """By the newest, also while its turn comes; it leaves in each way, or its lease ends."""
    newest: dict[str, Any] = {"gives_way": True, "supersedes": True, "name": "sync"}
    a, b, c = (_claim(task, QUEUE, **newest, done_ttl=9 * SECOND) for task in "abc")
    operations: Operations = []
    for outcome in Outcome:
        comes = [_enter(a), _enter(b), ("renew", [a]), _enter(replace(b, wait=LOOK)), _enter(c)]
        left = [_pass(3), ("renew", [a]), _leave(a, outcome), _enter(replace(a, nonce="2"), "2")]
        ends = [_enter(b), _leave(b), _enter(c), _leave(a), _leave(c), _pass(86_401), REAP]
        operations += [*comes, *left, *ends]
    shadow = [_enter(a), _enter(replace(a, nonce="2")), _enter(b), _pass(4), SWEEP, _enter(a)]
    late = [_enter(a), _enter(b), _pass(4), SWEEP, _enter(b), _leave(a, Outcome.REPEAT), _enter(a)]
    gone = [_leave(each) for each in (a, b)]
    just_now = [_enter(a), _enter(b), _pass(4), _enter(c), _enter(b), _leave(b), _enter(c)]
    gone = [*gone, _leave(c)]
    return [*operations, *shadow, *gone, *late, *gone, *just_now, *gone, _pass(86_401), REAP]


def _hold(was: str, name: str, seconds: int) -> tuple[Any, ...]:
    return ("apply", PutOnHold(KEY, was, name, "ann", "why", seconds * SECOND))


def _on_hold() -> Operations:
    """Ended by itself, replaced and ended early, with a turn given before, and with readers."""
    waits = [_enter(_claim(task, QUEUE, gives_up=9 * SECOND)) for task in "bc"]
    reader = _enter(_claim("d", QUEUE, gives_up=9 * SECOND, mode=Mode.SHARED))
    given = [_enter(_claim("a")), waits[0], _leave(_claim("a")), _hold("", "1", 60), *waits, reader]
    ended = [_pass(59), SWEEP, *waits, _pass(1), SWEEP, _pass(4), SWEEP, *waits]
    gone = [_leave(_claim(task)) for task in "abcd"]
    early = [_enter(_claim("a")), *waits, _hold("", "2", 60), _pass(30), _leave(_claim("a"))]
    replaced = [_hold("1", "3", 60), _hold("2", "3", 90), reader, _pass(30), _hold("3", "", 0)]
    late = [_pass(8), SWEEP, *waits, _pass(2), SWEEP, reader]
    return [
        *given,
        *ended,
        *gone,
        *early,
        *replaced,
        *late,
        *gone,
        _hold("", "4", 9),
        _pass(9),
        REAP,
    ]


ALL: dict[str, Operations] = {
    "done twice": _done_twice(),
    "a writer ahead": _writer_ahead(),
    "never answered": _never_answered(),
    "dies again and again": _dies_again_and_again(),
    "dies and is not dead-lettered": _dies_and_is_not_dead_lettered(),
    "nobody hears that it runs": _nobody_hears_that_it_runs(),
    "dies before it waits": _dies_before_it_waits(),
    "nobody reads it": _nobody_reads_it(),
    "dead and about": _dead_and_about(),
    "dead and discarded": _dead_and_discarded(),
    "kept": _kept(),
    "kept counts as nothing": _kept_counts_as_nothing(),
    "a shadow counts as nothing": _a_shadow_counts_as_nothing(),
    "kept in turn": _kept_in_turn(),
    "held in another way": _held_in_another_way(),
    "room beside one that is kept": _room_beside_one_that_is_kept(),
    "handed on by one that is done": _handed_on_by_one_that_is_done(),
    "revoked": _revoked(),
    "published": _published(),
    "published while it runs": _published_while_it_runs(),
    "published where it is reserved": _published_where_it_is_reserved(),
    "at the head": _at_the_head(),
    "reserved": _reserved(),
    "reserved for readers": _reserved_for_readers(),
    "the retry was faster": _retry_was_faster(),
    "the retry was faster still": _retry_was_faster_still(),
    "replaced": _replaced(),
    "on hold": _on_hold(),
}

#: With every slot free at once, and the first to come the one who stands last: its operation
#: sees its own entry, and may not call it before those in between.
CROWD = [(Mode.EXCLUSIVE, WaitMode.QUEUE, 0)] * (WINDOW + 8)
ALL_FREE_AT_ONCE: Operations = [("pass", 5 * SECOND)]

#: Those who stand farthest back are revoked, and called because their forerunner has left.
FAR_BACK: Operations = [
    ("cancel", KEY, f"w{WINDOW + 5}"),
    ("leave", Claim(KEY, "a", "1", SECOND, successor=f"w{WINDOW + 6}"), Outcome.OVER, None),
    REAP,
]


def _unseen() -> dict[str, Operations]:
    """Who waits matters here, and a script that does not look there answers otherwise."""
    a, b, c, d = (_claim(task, QUEUE) for task in "abcd")
    long, kept = replace(a, ttl=60 * SECOND), replace(a, keep=True)
    late, later = (replace(b, gives_up=n * SECOND) for n in (5, 9999))
    place = replace(_claim("p", PLACE), patience=2 * SECOND)
    crowd = [_enter(_claim(f"w{n}", QUEUE, limit=99)) for n in range(WINDOW + 9)]
    last = _claim(f"w{WINDOW + 8}")
    readers = [_enter(_claim(task, QUEUE, mode=Mode.SHARED)) for task in "bc"]
    return {
        "somebody gives up": [_enter(long), _enter(late), _enter(c), _pass(6), _enter(d)],
        "a later one gives up earlier": [
            *[_enter(long), _enter(later), _enter(replace(c, gives_up=5 * SECOND))],
            *[_pass(6), _enter(d)],
        ],
        "a holder has its message here": [_enter(kept), _enter(b), _enter(_claim("c"))],
        "more than one is let in": [
            *[_enter(a), *crowd, _pass(4), _leave(last, Outcome.ABANDONED)],
        ],
        "the queue changes before all are let in": [_enter(kept), *crowd, _leave(kept)],
        "the first has a place": [
            *[_enter(a), _enter(place), _enter(b), _enter(c), _pass(3), _leave(a)],
        ],
        "readers wait": [_enter(a), *readers, _leave(a)],
    }


#: For stores that are given no more than the head of a queue: Redis, and the rules on SQLite.
HEADS = _unseen()
