"""One task does for another: of those without an effect of their own, whether one did.

Not what a result says of others counts, but what ran, and when. And of two calls for which one is
enough, whether one was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from celery_dlock.locks.pending_releases import LONGEST_PAUSE
from tests.chaos.faults import Struck
from tests.chaos.plan import Kind
from tests.chaos.resource import Effect
from tests.chaos.runs import Run
from tests.chaos.sender import Sent
from tests.chaos.stage import End
from tests.chaos.turns import OF_STORE, SPARE_BODIES, was_struck
from tests.chaos.ways import Instead, Key

#: Seconds after the last line of a body within which its task still has its key.
LEAVING = 1.0

#: Seconds for which calls are answered with a unique task of whose end the store has not heard.
BELIEVED = 60.0

#: Seconds in which a call is published if the store answers.
ANSWERED = 1.0

#: Seconds after which a request fails that was under way as the store stood still.
TIMES_OUT = 5.0

#: Faults of one member of the store.
OF_MEMBERS = frozenset({Kind.KILL_MEMBER, Kind.PAUSE_MEMBER})

#: Seconds after such a fault in which the others may still choose who leads them.
ELECTION = 5.0

#: Faults by which a process may die before the store has heard of a task's end.
KILLS = frozenset({Kind.KILL_CHILD, Kind.KILL_MAIN, Kind.KILL_WORKER, Kind.STOP_COLD})


class Fates:
    """What became of the tasks: their *effects*, their *ends*, and what of them ran."""

    def __init__(
        self,
        sent: Sequence[Sent],
        effects: Sequence[Effect],
        ends: Mapping[str, End],
        runs: Sequence[Run],
        struck: Sequence[Struck],
        ttl: float,
    ) -> None:
        self._sent = {each.id: each for each in reversed(sent)}
        self._calls = {effect.task: effect.call for effect in effects}
        self._ends = ends
        self._runs = [run for run in runs if run.task in self._calls]
        self._enders = [each for each in struck if each.kind not in SPARE_BODIES]
        self._broker_was_away = any(each.kind is Kind.RESTART_BROKER for each in struck)
        self._ttl = ttl

    def wrong(self, sent: Sequence[Sent]) -> Iterator[str]:
        """Each of these that is missing, and why that is not allowed."""
        for each in sent:
            why = self._why_wrong(each)
            if why is not None:
                yield f"{each.id} on {each.key.name} {why}"

    def _why_wrong(self, sent: Sent) -> str | None:
        if sent.id in self._calls and not sent.duplicate:
            return None
        end = self._ends.get(sent.id)
        if end is not None and end.state == "REVOKED":
            return None if sent.revoked else "was revoked by nobody"
        if end is None and sent.revoked and sent.args[2]:
            return None  # Celery stores RETRY after it has published, and over REVOKED
        if end is not None and end.state == "FAILURE" and self._was_not_followed(sent.follows):
            return None
        skipped = sent.duplicate or (end is not None and end.skipped)
        if not skipped or sent.key.instead is Instead.NOTHING:
            return f"has none; its end is {end}"
        if not any(self._does_for(run, sent) for run in self._runs):
            return f"has none, nor has {sent.key.instead}; its end is {end}"
        if sent.key.newest and self._calls.get(sent.id, sent.call) < sent.call:
            return f"has one of call {self._calls[sent.id]}, and was call {sent.call}"
        return None

    def _was_not_followed(self, sent: Sent | None) -> bool:
        """Whether *sent* has run and has failed: what follows could not be published."""
        if sent is None or sent.id not in self._calls or not self._broker_was_away:
            return False
        end = self._ends.get(sent.id)
        return end is not None and end.state == "FAILURE"

    def _does_for(self, run: Run, sent: Sent) -> bool:
        """Whether *run* does what *sent*, which did not run, was to do."""
        if run.key not in sent.key.taken:
            return False
        if sent.duplicate and run.task != sent.id and not self._was_skipped(sent.id):
            return False
        believed = sent.duplicate and sent.at < self._sent[run.task].at + BELIEVED
        if believed and self._may_be_unheard(run):
            return True
        if sent.key.instead is Instead.AFTER:
            return run.first > sent.at and not self._is_older(run, sent)
        if sent.duplicate and run.task == sent.id and self._was_heard(run) > sent.at:
            return True
        struck = was_struck(self._enders, run.first, run.last + self._ttl)
        return run.last + LEAVING + struck * self._ttl > sent.at

    def _was_heard(self, run: Run) -> float:
        """By when the store has heard that *run* has ended, which is repeated until it answers."""
        heard = run.last + LEAVING
        for fault in sorted(self._enders, key=lambda fault: fault.begin):
            if fault.kind in OF_STORE and fault.begin <= heard:
                heard = max(heard, fault.end + TIMES_OUT + LONGEST_PAUSE)
        return heard

    def _was_skipped(self, task: str) -> bool:
        """Whether the task that answered for others was itself found to be a duplicate."""
        end = self._ends.get(task)
        return end is not None and end.skipped

    def _may_be_unheard(self, run: Run) -> bool:
        """Whether the store was away as *run* ended, and its process died before it was back."""
        return all(
            was_struck(
                [s for s in self._enders if s.kind in of], run.last, run.last + 2 * self._ttl
            )
            for of in (OF_STORE, KILLS)
        )

    def _is_older(self, run: Run, sent: Sent) -> bool:
        """Whether the task of *run* came before *sent*, and nothing has made it come anew."""
        other = self._sent.get(run.task)
        if other is None or sent.duplicate or not other.before(sent):
            return False
        return not was_struck(self._enders, other.at, run.first)


def doubled(sent: Sequence[Sent], runs: Sequence[Run], struck: Sequence[Struck]) -> Iterator[str]:
    """Each call that was published although one was to come that does for both.

    One that went without its claim takes that of another as it runs. So of all that were there as
    the one was called, none may have been struck since its own call.
    """
    enders = [each for each in struck if each.kind not in SPARE_BODIES]
    enders += [replace(each, end=each.end + ELECTION) for each in struck if each.kind in OF_MEMBERS]
    begun: dict[str, float] = {}
    over: dict[str, float] = {}
    for run in runs:
        begun.setdefault(run.task, run.asked)  # the claim may end before its body's first line
        over[run.task] = run.last
    of_keys: dict[Key, list[Sent]] = defaultdict(list)
    for each in sent:
        if not each.key.called or each.key.newest or each.duplicate or each.published is None:
            continue
        earlier = of_keys[each.key]
        last = earlier[-1] if earlier else each
        if begun.get(last.id, 0.0) > each.published and each.published - each.at < ANSWERED:
            there = [one.at for one in earlier if over.get(one.id, math.inf) >= last.at]
            if earlier and not was_struck(enders, min(there), each.published):
                yield f"{each.id} on {each.key.name} was published, and {last.id} was to come"
        earlier.append(each)
