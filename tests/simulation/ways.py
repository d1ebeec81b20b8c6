"""The way of each delivery, step by step, beside which the worker of ``tests/model`` goes.

A step that the model's worker cannot take is wrong. Followed is whatever asks for no more than the
model has words for, and nothing from where it is struck by what the model does not know:

* no task with several keys, unique tasks and debounced ones, nor policies that wait in a slot or
  give up after some tries; no message that is too long for the store, and no task of which one
  expires: a worker then drops whatever comes under its id;
* no schedule with revocations, time limits, a cold shutdown, a canvas that is no chain, an exchange
  that is missing, a queue that cannot be declared, or a broker that waits for countdowns;
* no delivery whose task is unknown to its worker, or whose body replaces or requeues it; and where
  a message is acknowledged early, none whose child is killed or whose connection is lost.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain
from random import Random
from typing import Any

from celery.exceptions import Retry, TaskPredicate
from celery.states import READY_STATES, SUCCESS
from kombu.exceptions import OperationalError

from celery_dlock.core.operations import Enter, Leave
from celery_dlock.core.state import Busy, Mode, Outcome, Same, WaitMode, task_id_of
from celery_dlock.delivery.execution import Execution
from celery_dlock.errors import BackendUnavailable, LockLost, StaleFencingToken
from celery_dlock.messages.headers import DELIVERY, FOLLOWS, identity_in, was_woken
from celery_dlock.stores.base import Reply
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.worker.request import LockedRequest
from tests.model.config import Task
from tests.model.follow import BEFORE, MINE, NEXT, OTHER, Follower, Seen
from tests.model.world import LEAVE_UNHEARD
from tests.simulation.broker import Broker, Channel, Sent
from tests.simulation.kernel import Green, Kernel, Process
from tests.simulation.plan import (
    LONGEST,
    OF_BROKER,
    OF_STORE,
    STRIKES,
    Beside,
    Canvas,
    Fault,
    Kind,
    Plan,
    draw,
)
from tests.simulation.store import Store, clock
from tests.simulation.tasks import Results, evidence

QUEUED = Task(by_main=True)
REPLACES = Task(max_waiting=1, replaces=True, by_main=True)

#: What stands in the model for a kind of task.
SPECS: Mapping[str, Task] = {
    "queued": QUEUED,
    "aborts": QUEUED,
    "cools": QUEUED,
    "kept": replace(QUEUED, keep=True),
    "impatient": replace(QUEUED, gives_up=True),
    "slotted": replace(QUEUED, limit=2),
    "reader": replace(QUEUED, mode=Mode.SHARED),
    "few": replace(QUEUED, max_waiting=1),
    "reserves": replace(QUEUED, reserves=True),
    "replaces": REPLACES,
    "drops_oldest": replace(REPLACES, gives_up=True),
    "gives_way": replace(REPLACES, newest=True),
    "reports": Task(looks=True),
    "ordered": Task(ordered=True),
    "rescheduled": Task(WaitMode.PLACE),
    "skips": Task(WaitMode.NOT),
    "skips_one": Task(WaitMode.NOT),
    "fails": Task(WaitMode.NOT),
}

#: What a followed task may be called with.
CANVASES = frozenset({Canvas.ALONE, Canvas.CHAIN})

UNKNOWN = frozenset(
    {Kind.REVOKE, Kind.TERMINATE, Kind.SOFT_LIMIT, Kind.STOP_COLD, Kind.BROKER_MISSES}
)

ENTERS = {WaitMode.LOOK: "looks", WaitMode.ENQUEUE: "park"}

#: Why a body ends, also one whose retry cannot be published.
STOPS = (GIVES_WAY, GIVES_UP, LOSES) = (
    "gives way",
    "gives its lock up",
    "sees that its lock is lost",
)

TO_PARK = "deliver to be parked"


@dataclass(eq=False, slots=True)
class Way:
    """One delivery, and how far it has come. *over*: from here on it is not followed."""

    task: str
    main: Process
    early: bool
    follower: Follower
    #: The id of the task before it in a canvas.
    follows: str = ""
    nonce: str = ""
    child: Process | None = None
    #: Whether what follows on it in a chain is still to be told that it has ended.
    chained: bool = False
    told: bool = False
    #: Whether the broker has not said that it has what was published last.
    unconfirmed: bool = False
    killed: bool = False
    over: bool = False

    def number_of(self, task: str) -> int:
        """Which task of the model that is."""
        if task_id_of(task) != task_id_of(self.task):
            return OTHER
        return MINE if task == self.task else NEXT if task > self.task else BEFORE


class Ways:
    """All deliveries of one schedule, and what is *wrong* with them; *cancels* is the plan's."""

    def __init__(self, *, cancels: bool) -> None:
        self.wrong: list[str] = []
        self._cancels = cancels
        self._by_tag: dict[tuple[Channel, int], Way] = {}
        self._by_nonce: dict[str, Way] = {}
        self._at: dict[Green, Way] = {}
        self._called: dict[tuple[Green, str], Way] = {}
        self._replies: dict[Green, Reply[Any]] = {}
        self._taken: set[Green] = set()
        self._expire: set[str] = set()  # ids

    @property
    def steps(self) -> Counter[str]:
        """In how many deliveries a step of the model's worker was taken."""
        return Counter(chain.from_iterable(w.follower.steps for w in self._by_tag.values()))

    def _step(self, way: Way | None, what: str, **asked: Any) -> None:
        if way is None or way.over:
            return
        todo = [Seen(what, **asked)]
        twice = what == "is delivered twice"
        if not way.follower.way:
            held_back = twice and not way.nonce
            first = TO_PARK if what.startswith("park") else "deliver"
            todo.insert(0, Seen(first, or_else=TO_PARK if held_back else ""))
        if way.unconfirmed and not twice:
            way.unconfirmed = False
            if not what.startswith((*STRIKES, *STOPS)):  # else that is the end of it
                todo.insert(-1, Seen("cannot be published"))
        for seen in todo:
            wrong = way.follower.step(seen)
            if wrong is not None:
                way.over = True
                self.wrong.append(f"{way.task} is not in the model: {wrong}")
                return

    # What the main process sees of it.

    def delivered(self, message: Any, channel: Channel, _: Sent) -> None:
        headers, worker = message.headers, channel.worker
        name = headers["task"]
        if headers.get("expires"):
            self._expire.add(headers["id"])
        if name not in SPECS or headers["id"] in self._expire or worker.crew.misses == name:
            return
        spec, early = SPECS[name], not worker.app.tasks[name].acks_late
        if spec.reserves and headers.get("retries"):
            spec = replace(spec, looks=True)
        woken, cools = was_woken(headers), name == "cools"
        follower = Follower(spec, early_ack=early, cooldown=cools, woken=woken)
        follows = headers.get(FOLLOWS) or ""
        way = Way(identity_in(headers), worker.process, early, follower, follows)
        self._by_tag[channel, message.delivery_tag] = way

    def requested(self, _: None, request: Any, *__: Any, **___: Any) -> None:
        way = self._by_tag.get((request.message.channel, request.message.delivery_tag))
        if way is not None:
            way.nonce = request._request_dict[DELIVERY]["nonce"]
            self._by_nonce[way.nonce] = way

    def acknowledged(self, _: None, channel: Channel, tag: int, **__: Any) -> None:
        way = self._by_tag.get((channel, tag))
        if way is not None and not way.early:
            self._note_child(way)
            # If its child is gone, Celery 5.7 looks whether another delivery has stored a result.
            if not (way.killed and evidence().has_ended(task_id_of(way.task))):
                self._step(way, "ack")
            way.over = True

    def rejected(self, _: None, channel: Channel, tag: int, requeue: bool = False) -> None:
        way = self._by_tag.get((channel, tag))
        if way is not None:
            assert requeue, "all that is rejected else is of an unknown task"
            if way.nonce and way.child is None:  # gone with it before it could begin
                self._is_told(way)
            self._note_child(way)
            self._step(way, "is requeued")
            way.over = True

    def _note_child(self, way: Way) -> None:
        """That it is gone the main process may hear before the store does."""
        if way.child is not None and not way.child.alive:
            self._is_told(way)

    def disconnected(self, _: None, channel: Channel) -> None:
        for (where, _tag), way in self._by_tag.items():
            if where is channel:
                way.over = way.over or way.early or self._cancels
                self._step(way, "is delivered twice")

    def died(self, _: None, __: Kernel, process: Process) -> None:
        for way in self._by_tag.values():
            if process is way.main and way.child in (None, process):
                self._step(way, "CRASH of")
                way.over = True

    # What its child does.

    def begun(self, execution: Execution, *_: Any) -> None:
        green = Kernel.here().me()
        self._at.pop(green, None)
        way = self._by_nonce.get(execution.nonce)
        if way is not None:
            self._at[green] = way
            way.child, way.chained = green.process, bool(execution.request.chain)

    @contextmanager
    def running(self, execution: Execution, *_: Any) -> Iterator[None]:
        way = self._by_nonce.get(execution.nonce)
        try:
            yield
        except LockLost:
            self._step(way, _why_it_stops(execution))
            raise
        except StaleFencingToken:
            self._step(way, "is refused by the fence")
            raise
        except Retry:
            raise
        except TaskPredicate:
            if way is not None:
                way.over = True
            raise
        except Exception:
            self._step(way, "effect of")
            raise
        self._step(way, "effect of")

    def stored(self, _: Any, __: Results, task_id: str, *told: Any, **___: Any) -> None:
        """Or not, for a success is there already."""
        _result, state, *_more = told
        way = self._at.get(Kernel.here().me())
        if way is None or state not in READY_STATES:
            return
        own = task_id == task_id_of(way.task)
        if not way.told and not (own and way.chained and state == SUCCESS):
            way.told = True
            self._step(way, "callbacks of")
        if own:
            self._step(way, "result of")

    # What it asks the store, or its main process does for it.

    @contextmanager
    def asking(self, _: Store, operation: Any) -> Iterator[None]:
        green = Kernel.here().me()
        self._replies.pop(green, None)
        try:
            yield
        except BackendUnavailable:
            self._asked(green, operation, self._replies.pop(green, None), heard=False)
            raise
        finally:
            reply = self._replies.pop(green, None)
            if reply is not None:
                self._asked(green, operation, reply, heard=True)

    def committed(self, reply: Reply[Any], _: MemoryBackend, __: Any) -> None:
        if Kernel.here().running is not None:
            self._replies[Kernel.here().me()] = reply

    def _asked(self, green: Green, operation: Any, reply: Reply[Any] | None, heard: bool) -> None:
        claim, outcome = operation.claim, getattr(operation, "outcome", None)
        if not isinstance(operation, Enter | Leave):
            return
        way = self._by_nonce.get(claim.nonce) or self._held_back(green, claim.task)
        if way is None:
            if reply is not None and claim.enqueues:  # where a publish would be
                self._sent(claim.task, taken=True, confirmed=True)
            return
        if outcome and green.process is way.main is not way.child and not self._is_told(way):
            return
        name = f"leave {outcome}" if outcome else ENTERS.get(claim.wait, "enter")
        if outcome is Outcome.REPEAT and claim.has_message and not claim.begun:
            name = LEAVE_UNHEARD
        if reply is None:
            if not claim.again:
                self._step(way, f"{name} is not heard", claim=claim, outcome=outcome)
            return
        if claim.wait is WaitMode.NOT:
            way.over = way.over or _waits_for_predecessor(way, reply.verdict)
        what = f"{name}: {type(reply.verdict).__name__}" + ", and nobody hears it" * (not heard)
        for wake in reply.wakes if heard else ():
            self._called[green, wake.task] = way
        asked = {"claim": claim, "outcome": outcome, "verdict": _in_model(way, reply.verdict)}
        wakes = sorted(way.number_of(wake.task) for wake in reply.wakes) if heard else ()
        self._step(way, what, wakes=tuple(wakes), **asked)

    def _is_told(self, way: Way) -> bool:
        """That the child is gone the main process says, perhaps twice, when it has left already."""
        first, way.killed = not way.killed, True
        way.over = way.over or way.early
        if first:
            self._step(way, "child of is killed")
        return first

    def _held_back(self, green: Green, task: str) -> Way | None:
        """Whose message the main process of that worker parks."""
        ways = (w for w in self._by_tag.values() if w.task == task and w.main is green.process)
        return next((w for w in ways if not (w.nonce or w.over)), None)

    # What is published.

    @contextmanager
    def publishing(self, _: Broker, sent: Sent) -> Iterator[None]:
        green = Kernel.here().me()
        self._taken.discard(green)
        try:
            yield
        except OperationalError:
            self._published(sent, taken=green in self._taken, confirmed=False)
            raise
        self._published(sent, taken=True, confirmed=True)

    def put(self, _: None, __: Broker, ___: Sent) -> None:
        if Kernel.here().running is not None:
            self._taken.add(Kernel.here().me())

    def _published(self, sent: Sent, *, taken: bool, confirmed: bool) -> None:
        if was_woken(pickle.loads(sent.frame)[0]):
            way = self._called.pop((Kernel.here().me(), sent.identity), None)
            self._step(way, "publish" if taken else "publish in vain")
        else:
            self._sent(sent.identity, taken=taken, confirmed=confirmed)

    def _sent(self, who: str, *, taken: bool, confirmed: bool) -> None:
        way = self._at.get(Kernel.here().me())
        if way is None or _nesting(who) != _nesting(way.task):  # else its body is replaced
            return
        number = way.number_of(who)
        if number == OTHER:
            if taken and not way.told:
                way.told = True
                self._step(way, "callbacks of")
            return
        way.unconfirmed = False
        if taken:
            what = "is published again" if number == MINE else "retries as"
            self._step(way, what if confirmed else f"{what}, unconfirmed")
        way.unconfirmed = not confirmed


def _waits_for_predecessor(way: Way, verdict: object) -> bool:
    """Whether the key is held by the task before it in a canvas, of which the model has none."""
    holder = verdict.holder if isinstance(verdict, Busy) else None
    return bool(way.follows) and holder is not None and task_id_of(holder.task) == way.follows


def _nesting(task: str) -> str:
    """How often *task* was replaced; of a step of a canvas more is said there."""
    return task.rsplit(":", 1)[1].partition("~")[0]


def _why_it_stops(execution: Execution) -> str:
    lease = execution.hold.lease
    assert lease is not None
    if lease.replaced is not None:
        return GIVES_WAY
    held = Store.memory.peek(lease.key).holders
    mine = (h for h in held if h.nonce == execution.nonce and h.expires > clock())
    return GIVES_UP if any(mine) else LOSES


def _in_model(way: Way, verdict: Any) -> Any:
    if not isinstance(verdict, Busy | Same) or verdict.holder is None:
        return verdict
    task = f"t{way.number_of(verdict.holder.task)}"
    return replace(verdict, holder=replace(verdict.holder, task=task))


#: Those of the schedule that is played, if they are followed.
_here: list[Ways] = []


def begin(plan: Plan) -> Ways:
    """Follow the deliveries of *plan*, if the model knows what strikes there."""
    ways = Ways(cancels=plan.cancels)
    unknown = any(fault.kind in UNKNOWN for fault in plan.faults)
    unknown = unknown or not all(call.canvas in CANVASES for call in plan.calls)
    unknown = unknown or plan.quorum or plan.beside is not Beside.THERE
    _here[:] = [] if unknown or not plan.keeps_all else [ways]
    return ways


def plan_of(seed: int) -> Plan:
    """One in which all is followed, and the store and the broker are struck more often."""
    plan, random = draw(seed, list(SPECS)), Random(seed)
    calls = [replace(c, expires=None) for c in plan.calls if c.canvas in CANVASES]
    crews = [replace(c, misses="") for c in plan.crews]
    kinds = sorted(set(Kind) - UNKNOWN)
    kinds += [kind for kind in kinds if kind in OF_STORE | OF_BROKER] * 3
    drawn = [random.choice(kinds) for _ in range(random.randint(1, 5))]
    faults = [
        Fault(
            kind,
            at=random.randrange(30 if kind in OF_STORE | OF_BROKER else 250),
            seconds=random.choice((0.5, 5.0, 35.0)),
            which=random.randrange(100),
        )
        for kind in drawn
    ]
    plan = replace(plan, longest=max(LONGEST), calls=calls, crews=crews, faults=faults)
    return replace(plan, cancels=False, quorum=False, beside=Beside.THERE)


def _around(owner: Any, name: str, note: Callable[..., AbstractContextManager[None]]) -> None:
    whole = getattr(owner, name)

    @wraps(whole)
    def noted(*args: Any) -> Any:
        if not _here:
            return whole(*args)
        with note(_here[0], *args):
            return whole(*args)

    setattr(owner, name, noted)


def _after(owner: Any, name: str, note: Callable[..., None]) -> None:
    whole = getattr(owner, name)

    @wraps(whole)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = whole(*args, **kwargs)
        if _here:
            note(_here[0], result, *args, **kwargs)
        return result

    setattr(owner, name, noted)


def watch() -> None:
    """From now on, see what each delivery does."""
    _after(Channel, "deliver", Ways.delivered)
    _after(LockedRequest, "__init__", Ways.requested)
    _after(Channel, "basic_ack", Ways.acknowledged)
    _after(Channel, "basic_reject", Ways.rejected)
    _after(Channel, "end", Ways.disconnected)
    _after(Kernel, "kill", Ways.died)
    _after(Execution, "begin", Ways.begun)
    _around(Execution, "run", Ways.running)
    _after(Results, "_store_result", Ways.stored)
    _around(Store, "apply", Ways.asking)
    _after(MemoryBackend, "apply", Ways.committed)
    _around(Broker, "publish", Ways.publishing)
    _after(Broker, "_put", Ways.put)
