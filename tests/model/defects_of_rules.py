"""The machine with one rule spoilt at a time."""

from __future__ import annotations

from celery_dlock.core import edits, turns
from celery_dlock.core.state import Mode, WaitMode
from tests.model.config import CRASH, LEASE, REDELIVER, Config, Task
from tests.model.defects import Defect

Q, P, N = Task(), Task(WaitMode.PLACE), Task(WaitMode.NOT)
RQ, RP = Task(mode=Mode.SHARED), Task(WaitMode.PLACE, Mode.SHARED)
Q2 = Task(limit=2)
SHRINKING, MIXED = Task(limit=2, becomes=Q), Task(becomes=P)

THREE = Config("three that queue", (Q, Q, Q))
PLACES = Config("two places, 1 fault", (P, P), faults=1)
SKIP = Config("two that skip, 1 fault", (N, N), faults=1)
CRASHES, COPIES = frozenset({CRASH}), frozenset({LEASE, REDELIVER})
COOLS = Config("a cooldown, 1 fault", (Q, Q), faults=1, cooldown=True)
NEW = Task(max_waiting=1, replaces=True, newest=True)
NEWEST = Config("two of which the newest wins, 1 fault", (NEW, NEW), faults=1)
DEPLOY = Config("a limit that shrinks", (SHRINKING, SHRINKING, SHRINKING), workers=3)


RULES = (
    Defect(
        "an operation that frees the key calls nobody: enter",
        "enter",
        "state, wakes = settle(state, now)",
        "wakes = ()",
        "S4",
    ),
    Defect(
        "an operation that frees the key calls nobody: leave",
        "leave",
        "state, wakes = settle(state, now)",
        "wakes = ()",
        "S4",
    ),
    Defect(
        "an operation that frees the key calls nobody: reap",
        "reap",
        "state, wakes = settle(expire(state, now), now)",
        "state, wakes = expire(state, now), ()",
        "S4",
    ),
    Defect(
        "a call that nobody answers is not repeated",
        "_wake_due",
        "if g.parked and g.due <= now",
        "if g.parked and g.due <= now and not g.woken",
        "L",
        module=turns,
    ),
    Defect(
        "a holder that dies leaves its slot open",
        "drop_expired",
        "state = cool(state, holder, now)",
        "pass",
        "S9",
        COOLS,
        turns,
    ),
    Defect(
        "a holder that leaves early leaves its slot open",
        "leave",
        "state = cool(state, mine, now) if claim.begun else state",
        "pass",
        "S9",
        COOLS,
    ),
    Defect(
        "who gave way and leaves its message runs again",
        "leave",
        "state = give_way(state, mine, now) if mine.replaced_by else state",
        "pass",
        "S10",
        NEWEST,
    ),
    Defect(
        "who gave way until its lease ended runs again",
        "drop_expired",
        "gone = give_way(state, holder, now) if holder.replaced_by else None",
        "gone = None",
        "S10",
        NEWEST,
        turns,
    ),
    Defect(
        "whose turn comes just now does not give way",
        "enter",
        "state, wakes = settle(state, now)\n    if claim.supersedes",
        "if claim.supersedes and isinstance(verdict, Park) and not is_known(before, claim.task):\n"
        "        state = ask_to_give_way(state, claim)\n"
        "    state, wakes = settle(state, now)\n    if False",
        "S10",
        Config("three of which the newest wins", (NEW, NEW, NEW)),
    ),
    Defect(
        "who dies while it ends for a newer one is never ended",
        "_take_turn",
        "if grant.parked:  # else",
        "if True:  # else",
        "S8",
        Config("two of which the newest wins, 2 faults", (NEW, NEW), faults=2, kinds=CRASHES),
    ),
    Defect(
        "whose turn is called is forgotten",
        "to_grant",
        "return replace(state, grants=(*state.grants, grant))",
        "return state",
        "S",
        THREE,
        edits,
    ),
    Defect(
        "a newcomer overtakes a grant",
        "free",
        "(*state.holders, *reserved)",
        "(*state.holders,)",
        "Q no more are called than may",
        THREE,
        edits,
    ),
    Defect(
        "a newcomer overtakes those who are parked",
        "_may_start",
        "if backlog(state):",
        "if False:",
        "S6",
        Config("three that queue, 1 fault", (Q, Q, Q), faults=1),
    ),
    Defect(
        "a waiting writer is starved by readers that come back",
        "_may_start",
        "return claim.mode is Mode.EXCLUSIVE or not writer_ahead",
        "return True",
        "S6",
        Config("a writer and readers, all places", (RP, P, RP)),
    ),
    Defect(
        "a place loses its rank at each attempt",
        "_start_or_wait",
        "rank = entry.rank if entry else (state.first - 1 if started else state.last + 1)",
        "rank = state.first - 1 if started else state.last + 1",
        "S6",
        Config("a place between two that queue", (Q, P, Q)),
    ),
    Defect(
        "what is done is not checked",
        "_answer",
        "if claim.task in state.done:",
        "if False:",
        "S3",
    ),
    Defect(
        "a result is only remembered while the lock is held",
        "_conclude",
        "if claim.done_ttl else",
        "if claim.done_ttl and held else",
        "S3",
    ),
    Defect(
        "the copy of a running task is dropped",
        "_answer",
        "return insert(state, claim, now, state.first - 1, None), Park(running)",
        "return state, Drop(Reason.WAITING)",
        "S8",
        Config("two that queue, 2 faults", (Q, Q), faults=2),
    ),
    Defect(
        "the copy of a running task is called into the second slot",
        "settle",
        "if entry in late or entry.task in running:",
        "if entry in late:",
        "Q never granted while it runs",
        Config("three kept with two slots", (Task(keep=True, limit=2),) * 3, workers=3),
        module=turns,
    ),
    Defect(
        "the copy of a running task is told that another has the key",
        "_answer",
        "Same(running, max(0, running.expires - now))",
        "_busy(state, now)",
        "S7",
        SKIP,
    ),
    Defect(
        "what waits is parked a second time",
        "_answer",
        "if asks_twice or (entry is not None and entry.parked):",
        "if asks_twice:",
        "R",
    ),
    Defect(
        "a message is acknowledged after its lock was lost",
        "kept",
        "task in state.done\n",
        "True\n",
        "S8",
        module=edits,
    ),
    Defect(
        "a copy that runs is trusted to keep the message",
        "_conclude",
        "kept(state, task)",
        "carried(state, task)",
        "S8",
        Config("one message for both copies", (Q,), faults=3, shared_ack=True),
    ),
    Defect(
        "leaving frees the key whoever holds it",
        "leave",
        "mine = holder_of(state, claim)",
        "mine = next(iter(state.holders), None)",
        "S1",
        Config("two places, 2 faults", (P, P), faults=2),
    ),
    Defect(
        "leaving frees the copy of the same task",
        "leave",
        "mine = holder_of(state, claim)",
        "mine = next((h for h in state.holders if h.task == claim.task), None)",
        "S1",
        Config("two that queue, 2 faults", (Q, Q), faults=2),
    ),
    Defect(
        "a lease that has ended is renewed",
        "renew",
        "if mine is None or mine.expires <= now:",
        "if mine is None:",
        "R",
    ),
    Defect(
        "who asks again is not known",
        "_answer",
        "if mine is not None and mine.expires > now:",
        "if False:",
        "R",
    ),
    Defect(
        "the dead keep their slots",
        "drop_expired",
        "if h.frees > now",
        "if True",
        "L",
        module=turns,
    ),
    Defect(
        "the lock delay is not kept",
        "drop_expired",
        "if h.frees > now",
        "if h.expires > now",
        "S1",
        Config("two places with a lock delay, 1 fault", (P, P), faults=1, lock_delay=True),
        module=turns,
    ),
    Defect(
        "a grant outlives the place it was for",
        "drop_expired",
        "if g.parked or g.due > now",
        "if True",
        "L",
        Config("early, a crash", (Q, P, Q), faults=1, kinds=CRASHES, early_ack=True),
        module=turns,
    ),
    Defect(
        "places never lapse",
        "_drop_expired_places",
        "if w.expires is not None and w.expires <= now",
        "if False",
        "L",
        Config("early acknowledgement, 1 fault", (Q, P), faults=1, early_ack=True),
        module=turns,
    ),
    Defect(
        "a grant is not used up",
        "_take_turn",
        "state = drop_grant(state, claim.task)",
        "pass",
        "R",
    ),
    Defect(
        "one slot for two holders",
        "hold",
        "(unused, token) if",
        "(0, token) if",
        "S1 one holder a slot",
        Config("two with two slots", (Q2, Q2)),
        edits,
    ),
    Defect(
        "a turn is taken although the limit has shrunk",
        "_take_turn",
        "if free(state, claim.mode, claim.limit) and not claim.enqueues:",
        "if not claim.enqueues:",
        "S1",
        DEPLOY,
    ),
    Defect(
        "the larger limit counts while two versions run",
        "free",
        "min((limit, *(t.limit for t in taken)))",
        "max((limit, *(t.limit for t in taken)))",
        "S1",
        DEPLOY,
        edits,
    ),
    Defect(
        "a run that was lost is forgotten",
        "drop_expired",
        "state = gone or count_lost(state, holder.task)",
        "state = gone or state",
        "S6",
        Config("three that queue, 1 fault", (Q, Q, Q), faults=1),
        module=turns,
    ),
    Defect(
        "a message put back at the head stands beside its own place",
        "_conclude",
        "state = leave_queue(state, task)  # another",
        "pass  # another",
        "Q one entry a task",
        Config("a policy that changes, 2 faults", (MIXED, MIXED), faults=2, kinds=COPIES),
    ),
    Defect(
        "a finished task leaves its copy in the queue",
        "_conclude",
        "case Outcome.DONE:\n            state = forget(state, task)",
        "case Outcome.DONE:",
        "S",
    ),
)
