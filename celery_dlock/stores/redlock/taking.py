"""One claim on its way to a majority.

::

    flight 1   the queue: may it run, in which slot?     1 node
    flight 2   hold it, with this token                  every node
    later      it is through; who is next?               every node, and the queue

The queue proposes the token, and every node of a majority has to find it larger than all that it
knows: so the queue may be wrong, or unavailable. A token that is refused, or that nobody proposes,
takes two flights more: look what a majority knows, and take with a larger one; and the queue is
told.

A claim that the queue refuses takes nothing, so the nodes see one contender for each slot as long
as the queue is there. Without it contenders meet on the nodes: one without a majority gives way.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NoReturn

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Busy, Claim, EnterVerdict, Holder, Park, Run, Same
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import Reply, Wake
from celery_dlock.stores.redlock import wire
from celery_dlock.stores.redlock.node import Refusal
from celery_dlock.stores.redlock.quorum import Quorum, Replies, nothing_less, whatever
from celery_dlock.stores.redlock.votes import drift, excludes, silence, slot_for, token_for

#: So often a claim tries that has looked: the holder may just be releasing.
TRIES = 2
#: Seconds to wait at most before the first of these, and twice that before the second.
PAUSE = 0.01
#: For so long the queue respects a holder that only the nodes know, before it asks again.
RESPECT = SECOND


class Taking:
    """*claim* enters."""

    def __init__(
        self, quorum: Quorum, calls: wire.Wire, claim: Claim, message: bytes | None
    ) -> None:
        self._quorum = quorum
        self._calls = calls
        self._claim = claim
        self._message = message
        self._began = time.monotonic()
        self._looks: dict[int, wire.Look] = {}
        self._rivals: list[Holder] = []
        self._refusals: list[Refusal] = []
        self._forgetful = False
        self._let_in: Run | None = None
        self._wakes: tuple[Wake, ...] = ()

    def run(self) -> Reply[EnterVerdict]:
        """Raises :exc:`~celery_dlock.BackendUnavailable` where there is no majority to ask.

        A task that was woken in such an operation is woken again, by a sweep.
        """
        answer = self._quorum.ask_queue(self._calls.enter(self._claim, self._message))
        reply = wire.entered(self._claim.key, answer)
        won = None
        if reply is not None:
            if not isinstance(reply.verdict, Run):
                return reply
            self._let_in, self._wakes = reply.verdict, reply.wakes
            won = self._take(reply.verdict)
        for attempt in range(TRIES):
            if won is not None or (self._rivals and self._let_in is None):
                break
            if self._rivals:
                self._step_back(attempt)
            won = self._take_after_a_look()
        if won is None:
            return self._give_way()
        if self._let_in is not None and self._let_in != won:
            self._quorum.ask_queue(self._calls.given(self._claim, won))
        self._forgetful |= self._quorum.somebody_forgot()
        if self._forgetful:
            self._look()
        elapsed = (time.monotonic() - self._began) * SECOND
        if self._claim.ttl - elapsed - drift(self._claim.ttl) <= 0:
            self._unavailable("a majority took longer than the lease lasts")
        return Reply(won, self._wakes)

    def _take(self, wanted: Run) -> Run | None:
        """Flight 2, and another where some nodes have given this claim a larger token before."""
        call = self._calls.take(self._claim, wanted.slot, wanted.token)
        answers = self._quorum.ask(call, self._all_counted).nodes.values()
        tokens = [given for answer in answers if (given := wire.token(answer)) is not None]
        self._rivals = []
        self._refusals = [answer for answer in answers if isinstance(answer, Refusal)]
        if len(tokens) < len(answers):
            votes = [wire.vote(answer) for answer in answers if wire.token(answer) is None]
            self._rivals = [rival for vote in votes for rival in vote.rivals]
            self._forgetful = any(vote.forgot for vote in votes)
        if len(tokens) < self._quorum.majority:
            return None
        largest = max(tokens)
        if tokens.count(largest) < self._quorum.majority:
            return self._take(Run(wanted.slot, largest))
        return Run(wanted.slot, largest)

    def _all_counted(self, replies: Replies, pending: int) -> bool:
        if len(replies) < self._quorum.majority <= pending:
            return False
        given = self._quorum.decides(lambda answer: wire.token(answer) is not None)
        return given(replies, pending)

    def _take_after_a_look(self) -> Run | None:
        refusals = self._look()
        voters = [look for look in self._looks.values() if look.votes]
        if len(voters) < self._quorum.majority:
            self._unavailable(self._quorum.trouble(*map(str, refusals[:1])))
        wanted = None if self._let_in is None else self._let_in.slot
        slot = slot_for(self._claim, self._looks.values(), self._quorum.size, wanted)
        if slot is None:
            held = [holder for look in voters for holder in look.holders]
            self._rivals = [h for h in held if excludes(h, self._claim, wanted or 0)]
            return None
        return self._take(Run(slot, token_for(self._claim, slot, voters)))

    def _look(self) -> list[Refusal]:
        """What the nodes know; those that forgot it are told, and may vote then. What is returned
        are the answers of those that refuse.
        """
        enough = self._enough_vote
        if self._quorum.somebody_forgot() or self._forgetful:
            enough = nothing_less  # it is to raise those that it looks
        answers = self._quorum.ask(self._calls.look(self._claim.key), enough).nodes
        looks = {number: wire.look(answer) for number, answer in answers.items()}
        self._looks = {number: look for number, look in looks.items() if look is not None}
        self._raise_the_empty()
        return [answer for answer in answers.values() if isinstance(answer, Refusal)]

    def _enough_vote(self, replies: Replies, pending: int) -> bool:
        return sum(wire.votes(of_node[0]) for of_node in replies.values()) >= self._quorum.majority

    def _raise_the_empty(self) -> None:
        """Tell nodes that forgot what the others know, where those are a majority, or all.

        They vote when every lease is over that they may have forgotten. When none of them knows
        anything the store is new.
        """
        empty = {number: look for number, look in self._looks.items() if not look.raised}
        remember = len(self._looks) - len(empty) >= self._quorum.majority
        if not empty or not (remember or len(self._looks) == self._quorum.size):
            return
        looks = self._looks.values()
        counter, longest = max(look.counter for look in looks), max(look.longest for look in looks)
        calls = {
            number: [self._calls.raised(look, counter, longest, silence(looks))]
            for number, look in empty.items()
        }
        for number, answer in self._quorum.tell(calls).items():
            if answer == [1]:
                self._looks[number] = replace(empty[number], votes=True)

    def _step_back(self, attempt: int) -> None:
        """Out of the way for a moment."""
        self._quorum.ask(self._calls.free(self._claim, through=False), whatever)
        time.sleep(CHANCE.uniform(0, PAUSE * (attempt + 1)))

    def _give_way(self) -> Reply[EnterVerdict]:
        """Nothing is held, and the queue knows who is in the way: others hold what it thought free.

        A message that queues is at its head, so it is not woken in vain again and again.
        """
        if self._refusals and not self._rivals:  # nobody is: servers without memory refuse, too
            self._unavailable(str(self._refusals[0]))
        reply = self._take_back("taken")
        verdict = reply.verdict if reply else Busy(None, 0, 0)
        wakes = self._wakes + (reply.wakes if reply else ())
        if isinstance(verdict, Park):
            return Reply(verdict, wakes)
        parked = verdict.parked if isinstance(verdict, Busy) else 0
        same = [holder for holder in self._rivals if holder.task == self._claim.task]
        holder = min(same or self._rivals, key=lambda h: h.expires, default=None)
        left = self._left(holder) if holder else 0
        if same and holder:
            return Reply(Same(holder, left), wakes)
        return Reply(Busy(holder, left, parked), wakes)

    def _unavailable(self, why: str) -> NoReturn:
        self._take_back("unavailable")
        raise BackendUnavailable(f"no majority of {self._quorum.size} Redis nodes: {why}")

    def _take_back(self, why: str) -> Reply[EnterVerdict] | None:
        """Release on all nodes, also where the reply was lost; out of the queue's holders."""
        refused = None
        if self._let_in is not None:
            most = max((self._left(holder) for holder in self._rivals), default=0)
            rivals = {(holder.task, holder.nonce): holder for holder in self._rivals}
            refused = self._calls.refused(
                self._claim, self._message, why, rivals.values(), min(most, RESPECT)
            )
        answers = self._quorum.free(
            self._calls.free(self._claim, through=False), self._claim, refused
        )
        return wire.entered(self._claim.key, answers.queue)

    def _left(self, holder: Holder) -> int:
        now = max((look.now for look in self._looks.values()), default=holder.since)
        return max(0, holder.expires - now)
