"""Plays the plan of a seed, and says what was wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import Any

from amqp.exceptions import NotFound
from celery import chain, chord, group, states
from celery.worker import state
from kombu.exceptions import OperationalError

from celery_dlock import operate
from celery_dlock.core.turns import expire
from celery_dlock.errors import BackendUnavailable
from celery_dlock.registry import BACKENDS, Provided
from celery_dlock.runtime import finish, forget
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from tests.simulation.broker import Broker, Named, Sent, installed
from tests.simulation.faults import Faults
from tests.simulation.kernel import Green, Kernel, Process
from tests.simulation.plan import (
    OF_BROKER,
    PLAIN,
    URLS,
    Beside,
    Call,
    Canvas,
    Crew,
    Ending,
    Fault,
    Kind,
    Plan,
    draw,
)
from tests.simulation.store import Store, clock
from tests.simulation.system import (
    CHILDREN,
    FINALIZERS,
    process,
    read_settings,
    stand_in,
)
from tests.simulation.tasks import KINDS, TAKES_PLACES, application, begin, plain, result_key
from tests.simulation.worker import Child, Worker

#: Seconds, from the last fault on, after which whatever has not ended is stuck.
PATIENCE = 7200.0

IDLE = Crew(slots=1, prefetch=1, prefork=True, hears_revocations=False, misses="")

#: So many steps, and it goes in circles.
ENDLESS = 200_000


@cache
def app() -> Any:
    BACKENDS["simulated"] = Provided("tests.simulation.store:Store", None, "")  # type: ignore[index]
    for url in (url for urls in URLS for url in urls):
        assert Named(url).transport  # which may draw as it is first used
    made = application()
    stand_in()
    return made


#: What Celery raises where the broker does not take a message.
UNPUBLISHED = ("OperationalError", "NotFound")

#: What a body may be told by Celery or by its lease, and does not catch.
ERRORS = {
    Ending.FAILS: ("Broken",),
    Ending.IS_REPLACED: UNPUBLISHED,
    Ending.EXTENDS: ("BackendUnavailable", "ConfigurationError"),
    Ending.NESTS: ("BackendUnavailable", "LockContended", "LockTimeout"),
    Ending.AWAITS: ("BackendUnavailable", "LockContended", "LockTimeout"),
}


#: Canvases in which Celery publishes one task as another one ends.
GOES_ON = (Canvas.CHAIN, Canvas.CHAIN_OF_CHORD)
OF_CHORDS = (Canvas.CHORD, Canvas.CHAIN_OF_CHORD)

#: With which Celery cannot go on to watch its header, or not publish its body.
BREAKS_CHORDS = OF_BROKER | {Kind.BROKER_AWAY, Kind.SOFT_LIMIT}

#: With which the order that is promised is kept.
KEEP_ORDER = OF_BROKER | {Kind.BROKER_AWAY, Kind.COPY, Kind.HOLD, Kind.REVOKE, Kind.STOP}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a schedule."""

    steps: int
    seconds: float
    struck: Sequence[Fault]
    wrong: Sequence[str]


class World:
    """One schedule."""

    def __init__(self, plan: Plan, tell: Callable[[str], object] | None = None) -> None:
        self.plan = plan
        self.kernel = Kernel(Random(plan.seed), plan.stays)
        self.faults = Faults(plan)
        self.broker = Broker(self.faults)
        self.seen = begin()
        self.workers: list[Worker] = []
        self.published: dict[str, Call] = {}
        self.revoked: set[str] = set()
        self.in_vain: list[Call] = []
        self.scripts: list[Green] = []
        #: Those of its canvas that a task is called behind.
        self.before: dict[str, Sequence[str]] = {}
        if tell is not None:
            self.kernel.tell = lambda text: tell(f"{self.kernel.now:9.3f} {text}")

    def play(self) -> Outcome:
        assert app().oid  # of this node, which is drawn with the first
        random.seed(self.plan.seed)
        state.reset_state()
        CHILDREN.clear()
        FINALIZERS.clear()
        Store.memory = MemoryBackend(BackendOptions(clock=clock))
        Store.faults = self.faults
        Store.largest_message = self.plan.longest
        app().conf.update(
            worker_soft_shutdown_timeout=self.plan.softly,
            worker_cancel_long_running_tasks_on_connection_loss=self.plan.cancels,
            dlock_broker=None if self.plan.urls else "simulated",
        )
        read_settings(app())
        app().amqp.queues.create_missing = self.plan.beside is not Beside.OFF
        home = app().amqp.queues["celery"]
        home.exchange.type = "topic" if self.plan.quorum else "direct"
        home.queue_arguments = {"x-queue-type": "quorum"} if self.plan.quorum else None
        self.broker.urls = self.plan.urls
        self.broker.lets_declare = self.plan.beside is not Beside.REFUSED
        for name, kind in KINDS.items():
            app().tasks[name].acks_late = kind.options.get("acks_late", self.plan.late)
        with self.kernel.installed(), installed(self.broker):
            for number, _ in enumerate(self.plan.crews):
                self._hire(number)
            if self.plan.stranger:
                Worker(app(), Broker(self.faults), self.plan.stranger, IDLE)
            self._publisher = process("publisher")
            self._calling = self.kernel.spawn(self._publisher, self._call_all, "main")
            self._run()
            self._judge()
            return Outcome(
                self.kernel.steps,
                self.kernel.now,
                self.faults.struck,
                tuple(self.seen.wrong),
            )

    def _hire(self, number: int) -> None:
        name = f"worker-{len(self.workers)}"
        self.workers.append(Worker(app(), self.broker, name, self.plan.crews[number]))

    # What is called.

    def _call_all(self) -> None:
        for call in sorted(self.plan.calls, key=lambda call: call.at):
            self.kernel.wait(call.at - self.kernel.now)
            self._call(call)

    def _call(self, call: Call) -> None:
        if call.kind == PLAIN:
            name = f"script-{len(self.scripts)}"
            run = partial(_script, name, call)
            self.scripts.append(self.kernel.spawn(process(name), run, "main"))
            return
        try:
            result = self._publish(call)
        except (BackendUnavailable, OperationalError, NotFound):
            self.in_vain.append(call)  # and whoever calls knows
            return
        if getattr(result, "is_duplicate", False):  # whose message may never have been sent
            return
        before: Sequence[str] = ()
        for tasks in reversed([*_steps(result)]):
            for task_id in tasks:
                self.published.setdefault(task_id, call)
                self.before[task_id] = before
            before, call = tasks, replace(call, steps=(), ending=Ending.OK, expires=None)

    def _publish(self, call: Call) -> Any:
        task = app().tasks[call.kind]
        options = {"countdown": call.countdown} if call.countdown else {}
        if call.expires is not None:
            options["expires"] = call.expires
        args = (call.key, list(call.steps), call.ending)
        if call.canvas is Canvas.ALONE:
            return task.apply_async(args, **options)
        mine, other = task.si(*args).set(**options), task.si(call.key, [], Ending.OK)
        match call.canvas:
            case Canvas.CHAIN:
                return chain(mine, other).apply_async()
            case Canvas.GROUP:
                return group(mine, other).apply_async()
            case Canvas.CHORD:
                return chord([mine, other], other.clone()).apply_async()
            case Canvas.CHAIN_OF_CHORD:
                return chain(mine, chord([other, other.clone()], other.clone())).apply_async()

    # What strikes.

    def _run(self) -> None:
        kernel, last, look_at = self.kernel, 0.0, 5.0
        while kernel.step():
            for fault in self.faults.due(kernel.steps):
                if self._strike(fault):
                    self.faults.has_struck(fault)
                last = kernel.now
            if kernel.broken or self.seen.wrong or kernel.steps > ENDLESS:
                break
            if kernel.now >= look_at:
                look_at = kernel.now + 5.0
                left = [*self._left()]
                if not left:
                    return
                if kernel.now > last + PATIENCE:
                    self.seen.wrong += left
                    return

    def _strike(self, fault: Fault) -> bool:
        """Whether there was a victim."""
        match fault.kind:
            case Kind.KILL_CHILD:
                return self._kill(self._one(self._children(), fault))
            case Kind.KILL_WORKER | Kind.KILL_MAIN:
                return self._die(fault)
            case Kind.STOP:
                return self._leaves(self._one(self._alive(), fault), Worker.stop, fault)
            case Kind.STOP_COLD:
                return self._leaves(self._one(self._preforking(), fault), Worker.stop_cold, fault)
            case Kind.FREEZE:
                return self._freeze(fault)
            case Kind.DISCONNECT:
                return self._disconnect(fault)
            case _:
                return self._act(fault)

    def _act(self, fault: Fault) -> bool:
        """Of somebody who asks no process."""
        match fault.kind:
            case Kind.COPY:
                return self._copy(fault)
            case Kind.REVOKE:
                return self._revoke(self._one(list(self.published), fault), terminate=False)
            case Kind.TERMINATE:
                return self._revoke(self._one(list(self.published), fault), terminate=True)
            case Kind.SOFT_LIMIT:
                return self._interrupt(self._one(self._at_a_job(), fault))
            case Kind.HOLD:
                return self._hold(self._one(list(self._keys()), fault), fault)
            case _:
                raise AssertionError(fault)

    def _leaves(
        self, worker: Worker | None, stop: Callable[[Worker], object], fault: Fault
    ) -> bool:
        if worker is not None:
            stop(worker)
            self._replace(worker, fault.seconds)
        return worker is not None

    def _freeze(self, fault: Fault) -> bool:
        process = self._one([w.process for w in self._alive()] + self._children(), fault)
        if process is not None:
            process.frozen_until = self.kernel.now + fault.seconds
        return process is not None

    def _disconnect(self, fault: Fault) -> bool:
        worker = self._one([w for w in self._alive() if w in self.broker.workers], fault)
        if worker is not None:
            worker.lose_connection()
        return worker is not None

    def _revoke(self, task_id: str | None, *, terminate: bool) -> bool:
        if task_id is None:
            return False
        self.revoked.add(task_id)
        for worker in self._alive():
            worker.hear(partial(worker.revoke, task_id, terminate=terminate))
        return True

    def _interrupt(self, child: Child | None) -> bool:
        if child is not None:
            child.interrupt()
        return child is not None

    def _keys(self) -> Iterator[str]:
        """The key of each call, and a limit behind it that tasks may wait for in vain."""
        for call in self.plan.calls:
            yield call.key
            if call.kind == "impatient_limit":
                yield "wide"

    def _hold(self, key: str, fault: Fault) -> bool:
        def hold() -> None:
            with suppress(BackendUnavailable):
                operate.hold(key, fault.seconds, because="an incident", by="somebody", app=app())

        self.kernel.spawn(process("operator"), hold, "main")
        return True

    def _one(self, of: Sequence[Any], fault: Fault) -> Any:
        return of[fault.which % len(of)] if of else None

    def _alive(self) -> list[Worker]:
        return [w for w in self.workers if w.process.alive and not w.stopping]

    def _preforking(self) -> list[Worker]:
        return [w for w in self._alive() if w in self.broker.workers and w.crew.prefork]

    def _at_a_job(self) -> list[Child]:
        return [c for c in CHILDREN.values() if c.process.alive and c.may_be_interrupted]

    def _children(self) -> list[Process]:
        """And scripts."""
        processes = [c.process for c in CHILDREN.values()] + [s.process for s in self.scripts]
        return [process for process in processes if process.alive]

    def _kill(self, process: Process | None) -> bool:
        if process is not None:
            self.kernel.kill(process)
        return process is not None

    def _die(self, fault: Fault) -> bool:
        worker = self._one(self._alive(), fault)
        if worker is None:
            return False
        worker.die(with_children=fault.kind is Kind.KILL_WORKER)
        self._replace(worker, fault.seconds)
        return True

    def _replace(self, worker: Worker, seconds: float) -> None:
        number = self.plan.crews.index(worker.crew)
        supervisor = process("supervisor")

        def later() -> None:
            self.kernel.wait(seconds)
            self._hire(number)

        self.kernel.spawn(supervisor, later, "main")

    def _copy(self, fault: Fault) -> bool:
        unacked = [
            sent
            for worker in self._alive()
            if worker in self.broker.workers
            for sent in worker.channel.unacked.values()
        ]
        queued = [sent for queue in self.broker.queues.values() for sent in queue]
        sent = self._one([*unacked, *queued], fault)
        if sent is not None:
            self.broker.back(sent)
        return sent is not None

    # What is left, and was wrong.

    def _left(self) -> Iterator[str]:
        if not self._calling.over:
            yield "not all is called yet"
        yield from (f"{green} has not ended" for green in self.scripts if not green.over)
        for task_id in self.published.keys() - _dead():
            call = self.published[task_id]
            if not (self.seen.has_ended(task_id) or self._may_have_gone(task_id, call)):
                yield f"{call.kind} {task_id} has not ended: {self._state(task_id)}"
        places: list[tuple[Iterable[Sent], str]] = []
        queues = [*self.broker.queues.values(), self.broker.waiting]
        places += [(queue, "the broker has") for queue in queues]
        for worker in self.broker.workers:
            places.append((worker.channel.unacked.values(), f"{worker.hostname} has not settled"))
        of_chords = {task for task, before in self.before.items() if before}
        of_chords.update(*self.before.values())
        looks_for_ever = any(call.canvas in OF_CHORDS for call in self.in_vain) or any(
            # Celery stores STARTED over all but a success, where another copy comes.
            self._state(task)[0] not in states.READY_STATES
            for task in of_chords
        )
        for sent, who in ((sent, who) for place, who in places for sent in place):
            if not (sent.name == "celery.chord_unlock" and looks_for_ever):
                yield f"{who} {sent.name} {sent.task}"
        yield from self._in_store()

    def _may_have_gone(self, task_id: str, call: Call) -> bool:
        """With a process that had acknowledged or rejected it, and not left it with the store."""
        if any(self._state(each)[0] != states.SUCCESS for each in self.before[task_id]):
            return True
        gone = {
            *(Kind.KILL_CHILD, Kind.KILL_WORKER, Kind.KILL_MAIN),
            *(Kind.DISCONNECT, Kind.STOP_COLD, Kind.TERMINATE),
        }
        struck = self._struck
        breaks_off = {Kind.SOFT_LIMIT, Kind.BROKER_MISSES}
        once, twice = not struck.isdisjoint(breaks_off), struck >= breaks_off
        if task_id in self.seen.unsaid and (twice or (once and not gone.isdisjoint(struck))):
            return True  # it has run; Celery's success was broken off, and so was its failure
        if Kind.SOFT_LIMIT in struck and self.before[task_id]:
            return True  # with what Celery watches a chord by
        kept = KINDS[call.kind].kept and self.broker.last[task_id] in self.seen.taken
        kept = kept and self.plan.keeps_all
        if (kept or app().tasks[call.kind].acks_late) and not self._is_unknown(call):
            return False
        requeued = any(each.ending is Ending.REQUEUES for each in self._alike(call))
        return requeued or not gone.isdisjoint(struck)

    def _in_store(self) -> Iterator[str]:
        memory = Store.memory
        for key in memory.keys(limit=1000).keys:
            found = expire(memory.peek(key), clock())
            if found.holders or found.parked or any(each.waits for each in found.grants):
                yield f"{key} is not free: {found}"

    def _state(self, task_id: str) -> tuple[str, Any]:
        text = self.seen.results.get(result_key(task_id))
        if text is None:
            return states.PENDING, None
        meta = json.loads(text)
        return meta["status"], meta["result"]

    def _judge(self) -> None:
        wrong = self.seen.wrong
        for who, error in self.kernel.broken:
            wrong.append(f"{who} ended with {error!r}")
        if self.kernel.steps > ENDLESS:
            wrong.append("it goes in circles")
        if wrong:
            return
        for task_id, call in self.published.items():
            wrong += self._wrong_of(task_id, call)
        for task_id, count in self.seen.effects.items():
            if count > 1:
                wrong.append(f"{task_id} has {count} effects")
        wrong += self._out_of_order()

    def _out_of_order(self) -> Iterator[str]:
        """Of tasks whose order is that of their calls, as long as nobody has lost a place."""
        struck = self._struck
        if not (self.plan.keeps_all and struck <= KEEP_ORDER):
            return
        dead = _dead()  # of whose messages a copy may come after others
        calls = {
            task_id: call
            for task_id, call in self.published.items()
            if call.kind == "ordered" and not call.countdown and task_id not in dead
        }
        for key in {call.key for call in calls.values()}:
            called = [i for i, call in calls.items() if call.key == key and not self.before[i]]
            began = [task_id for task_id in self.seen.began if task_id in called]
            if began != sorted(began, key=called.index):
                yield f"ordered at {key}: called were {called}, and began {began}"

    def _may_be_terminated(self, call: Call) -> bool:
        """As what its child began to run after its worker had cancelled all that ran there."""
        return Kind.STOP_COLD in self._struck and not app().tasks[call.kind].acks_late

    @property
    def _struck(self) -> set[Kind]:
        return {fault.kind for fault in self.faults.struck}

    def _alike(self, call: Call) -> list[Call]:
        """Those whose message that of *call* may have become."""
        return [each for each in self.plan.calls if (each.kind, each.key) == (call.kind, call.key)]

    def _is_unknown(self, call: Call) -> bool:
        """To some worker."""
        return any(crew.misses == call.kind for crew in self.plan.crews)

    def _may_fail(self, task_id: str, call: Call) -> Iterator[str]:
        """By which errors."""
        struck = self._struck
        yield from KINDS[call.kind].may_fail
        failed = any(result_key(each) in self.seen.failed for each in self.before[task_id])
        if failed or not struck.isdisjoint(BREAKS_CHORDS):
            yield "ChordError"
        if not app().tasks[call.kind].acks_late:
            yield "WorkerLostError"
        for each in self._alike(call):
            yield from ERRORS.get(each.ending, ())
            if each.canvas in GOES_ON:
                yield from UNPUBLISHED  # as the next one is
        if Kind.SOFT_LIMIT in struck:
            yield "SoftTimeLimitExceeded"
        if Kind.BROKER_MISSES in struck and not self.plan.keeps_all:
            yield "NotFound"  # its message is at fault, and the store cannot keep it
        if self._is_unknown(call):
            yield "NotRegistered"

    @property
    def _may_be_replaced(self) -> bool:
        return any(call.kind in TAKES_PLACES for call in self.plan.calls)

    def _wrong_of(self, task_id: str, call: Call) -> Iterator[str]:
        kind, effects = KINDS[call.kind], self.seen.effects[task_id]
        what, result = self._state(task_id)
        skipped = isinstance(result, dict) and result.get("skipped")
        if what == states.SUCCESS:
            if skipped and not (kind.may_skip or self._may_be_replaced):
                yield f"{call.kind} {task_id} was skipped: {result}"
            if not skipped and effects != 1:
                yield f"{call.kind} {task_id} has ended with {result}, and {effects} effects"
        elif what == states.FAILURE:
            if result["exc_type"] not in self._may_fail(task_id, call):
                yield f"{call.kind} {task_id} has failed: {result}"
        elif what == states.REVOKED and not (
            task_id in self.revoked
            or any(each.expires for each in self._alike(call))
            or self._may_be_terminated(call)
        ):
            yield f"{call.kind} {task_id} was revoked by nobody"


def _script(name: str, call: Call) -> None:
    """A process without tasks, from its start to its end."""
    plain(name, call.key, call.steps, call.ending)
    finish(20.0)
    forget(app())


def _dead() -> set[str]:
    return {letter.dead.task.rsplit(":", 2)[0] for letter in Store.memory.dead()}


def _steps(result: Any) -> Iterator[Sequence[str]]:
    """The tasks of a canvas that ends with *result*, the last ones first."""
    while result is not None:
        yield [each.id for each in getattr(result, "results", [result])]
        result = result.parent


def play(seed: int, tell: Callable[[str], object] | None = None) -> Outcome:
    """The schedule of *seed*."""
    return World(draw(seed, list(KINDS)), tell).play()


def shortest(seed: int) -> Plan:
    """The least of the plan of *seed* with which something is wrong still."""
    plan, at = draw(seed, list(KINDS)), 0
    while at < len(plan.calls) + len(plan.faults):
        faults = len(plan.faults)
        less = plan.without(fault=at) if at < faults else plan.without(call=at - faults)
        if World(less).play().wrong:
            plan = less
        else:
            at += 1
    return plan
