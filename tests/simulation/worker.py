"""A stand-in of Celery's worker, around what it really runs.

Real are the strategy, the request, the tracer, the message and its acknowledgement, the consumer's
handlers of what arrives, the timer, the semaphore of the slots, what a publish writes and the
results; and all boot steps of the library. Stood in for are the main loop, the prefork pool with
its children, the pool of threads, the connection and the prefetch window. ``test_stand_in.py``
holds them to real workers.

Left out of Celery are: other pools, rate limits, autoscaling, remote control but for a revocation,
which all workers hear at once, gossip and mingle, events, ``max_tasks_per_child``, a state that
survives the worker, message protocol 1, a loop that does not wake up for what a thread
acknowledges, and threads that take away its answers as they put back the prefetch count, a body
in a thread that is to be terminated before it begins, which Celery loses, a broker with a
visibility timeout (a copy of a message stands in for it), queues that are bound by other names,
priorities, kombu's own tries of a publish, and whatever a signal interrupts between two lines that
do not give way here. Children that outlive their main process are there for other systems than
Linux, where the kernel kills them.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
import pickle
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from heapq import heappop
from types import SimpleNamespace
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import (
    SoftTimeLimitExceeded,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.concurrency import base
from celery.exceptions import TaskRevokedError
from celery.worker import control, state
from celery.worker.consumer.consumer import Consumer
from celery.worker.worker import WorkController
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.asynchronous.timer import Timer
from kombu.common import QoS
from kombu.utils.imports import symbol_by_name

from celery_dlock.tasks.task import CONSUMER_STEPS, WORKER_STEPS
from celery_dlock.worker import children
from celery_dlock.worker.periodic import Sweeper
from tests.simulation.broker import Broker, Channel, Connection
from tests.simulation.kernel import INSTANT, Kernel
from tests.simulation.plan import Crew
from tests.simulation.system import CHILDREN, FINALIZERS, Pipe, process

#: Steps that wake up so often that they are left out where they have nothing to do.
_OF_REVOCATIONS = "celery_dlock.worker.periodic:EndRevoked"


class Job:
    """What a pool is given, and hands to a child."""

    def __init__(self, target: Any, args: Any, **calls: Any) -> None:
        self.target = target
        self.args = pickle.dumps(args)
        self.calls = SimpleNamespace(**calls)
        self.accepted_by: Child | None = None
        self.interrupted = self.returned = self.over = False

    def terminate(self, signal: int) -> None:
        """Its child is told by the pool."""


class Child:
    """A process of the pool."""

    def __init__(self, pool: Prefork, number: int) -> None:
        self.pool = pool
        self.pid = number
        self.job: Job | None = None
        self.retires = self.terminated = False
        self.process = process(f"child-{number}", pool.worker.process)
        self.process.at_death.append(partial(pool.died, self))
        self.green = Kernel.here().spawn(self.process, self._serve, "main")
        CHILDREN[number] = self

    def _serve(self) -> None:
        kernel, hear = Kernel.here(), self.pool.worker.hear
        while not (self.retires and self.job is None):
            if self.job is None:
                kernel.wait(None)
                continue
            job = self.job
            hear(partial(self.pool.accepted, job, self))
            try:
                kernel.pause("to begin")
                ok, result = True, job.target(*pickle.loads(job.args))
            except Exception:
                ok, result = False, ExceptionInfo()
            job.returned = True
            hear(partial(self.pool.ready, job, ok, result))
            kernel.pause("having ended")
            self.job = None
            self.pool.hand_out()
        children.have_the_last_word()
        self.process.alive = False
        for call in self.process.at_death:
            call()

    @property
    def may_be_interrupted(self) -> bool:
        job = self.job
        if job is None or job.accepted_by is not self:
            return False
        return not (job.interrupted or job.returned or job.over)

    def interrupt(self) -> None:
        """Its job's soft time limit is over, once."""
        job = self.job
        assert job is not None
        job.interrupted = True
        job.calls.timeout_callback(soft=True, timeout=job.calls.soft_timeout)
        Kernel.here().strike(self.green, SoftTimeLimitExceeded(job.calls.soft_timeout))


class Prefork:
    """The pool of children."""

    def __init__(self, worker: Worker, size: int) -> None:
        self.worker = worker
        self.num_processes = size
        self.todo: deque[Job] = deque()
        self.children = [self._fork() for _ in range(size)]

    def _fork(self) -> Child:
        return Child(self, len(CHILDREN) + 1)

    def apply_async(self, target: Any, args: Any, **calls: Any) -> Job:
        job = Job(target, args, **calls)
        self.todo.append(job)
        self.hand_out()
        return job

    def hand_out(self) -> None:
        for child in self.children:
            idle = child.process.alive and child.job is None and not child.retires
            if idle and self.todo:
                child.job = self.todo.popleft()
                Kernel.here().wake(child.green)

    def terminate_job(self, pid: int, signal: int) -> None:
        CHILDREN[pid].terminated = True
        Kernel.here().kill(CHILDREN[pid].process)

    def flush(self) -> None:
        """What no child was heard to begin is forgotten, though it may: it is delivered again."""
        for job in (*self.todo, *(child.job for child in self.children if child.job)):
            job.over = job.over or job.accepted_by is None
        self.todo.clear()

    def close(self) -> None:
        """What children were given they see through."""

    # What the main loop hears.

    def accepted(self, job: Job, child: Child) -> None:
        if job.over:
            return
        job.accepted_by = child
        job.calls.accept_callback(child.pid, Kernel.here().now)
        timer, calls = self.worker.timer, job.calls
        if calls.soft_timeout:
            timer.call_after(calls.soft_timeout, self._soft, (job, child))
        if calls.timeout:
            timer.call_after(calls.timeout, self._hard, (job, child))

    def ready(self, job: Job, ok: bool, result: Any) -> None:
        if job.over:
            return
        job.over = True
        self.worker.semaphore.release()
        (job.calls.callback if ok else job.calls.error_callback)(result)

    def _soft(self, job: Job, child: Child) -> None:
        if child.process.alive and child.job is job and child.may_be_interrupted:
            child.interrupt()

    def _hard(self, job: Job, child: Child) -> None:
        if not job.over:
            job.calls.timeout_callback(soft=False, timeout=job.calls.timeout)
            self._ends_with(job, TimeLimitExceeded(job.calls.timeout))
            Kernel.here().kill(child.process)

    def died(self, child: Child) -> None:
        kernel = Kernel.here()
        if self.worker.process.alive:
            seconds = kernel.random.choice((0.0, 0.1, 10.0))
            self.worker.hear_later(seconds, partial(self._replace, child))

    def _replace(self, child: Child) -> None:
        self.lost(child)
        self.children[self.children.index(child)] = self._fork()
        self.hand_out()

    def lost(self, child: Child) -> None:
        """With what it was at; of what it was through with it has told."""
        job = child.job
        if job is not None and not (job.over or job.returned):
            if job.accepted_by is child:
                lost = WorkerLostError(f"Worker exited prematurely: {child.pid}")
                self._ends_with(job, Terminated(0) if child.terminated else lost)
            else:
                self.todo.appendleft(job)

    def _ends_with(self, job: Job, error: Exception) -> None:
        try:
            raise error
        except type(error):
            self.ready(job, False, ExceptionInfo())

    @property
    def busy(self) -> bool:
        return bool(self.todo) or any(c.job is not None for c in self.children)


class Threads:
    """The pool whose bodies run in the worker's process; it is given all, and no slot is asked."""

    def __init__(self, worker: Worker, size: int) -> None:
        self.worker = worker
        self.num_processes = size
        self.todo: deque[Job] = deque()
        self.running = 0

    flush = None

    def apply_async(self, target: Any, args: Any, **calls: Any) -> Job:
        job = Job(target, args, **calls)
        self.todo.append(job)
        if self.running < self.num_processes:
            self.running += 1
            kernel = Kernel.here()
            kernel.spawn(self.worker.process, self._serve, f"pool-{kernel.steps}")
        return job

    def _serve(self) -> None:
        while self.todo:
            job = self.todo.popleft()
            base.apply_target(
                job.target,
                pickle.loads(job.args),
                callback=job.calls.callback,
                accept_callback=job.calls.accept_callback,
                monotonic=lambda: Kernel.here().now,
            )
        self.running -= 1
        self.worker.stir()

    def close(self) -> None:
        self.todo.clear()

    def terminate_job(self, pid: int, signal: int) -> None:
        """Threads cannot be ended."""

    @property
    def busy(self) -> bool:
        return self.running > 0


#: What steps ask the class of a pool for.
_POOLS = {
    prefork: SimpleNamespace(__module__=f"celery.concurrency.{name}", is_green=False)
    for prefork, name in ((True, "prefork"), (False, "thread"))
}


class TaskConsumer:
    """From which queues messages come."""

    def __init__(self, queues: list[Any]) -> None:
        self.queues = queues

    def consuming_from(self, name: str) -> bool:
        return any(queue.name == name for queue in self.queues)

    def add_queue(self, queue: Any) -> None:
        self.queues.append(queue)

    def cancel_by_queue(self, name: str) -> None:
        self.queues = [queue for queue in self.queues if queue.name != name]

    def consume(self) -> None: ...


class _Strategies(dict[str, Any]):
    """Made as they are needed."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __missing__(self, name: str) -> Any:
        app = self._worker.app
        if name == self._worker.crew.misses:
            raise KeyError(name)
        made = self[name] = app.tasks[name].start_strategy(app, self._worker)
        return made


class Worker(Consumer):  # type: ignore[misc]
    """One worker from its start to its death: what Celery calls the worker, and its consumer."""

    def __init__(self, app: Any, broker: Broker, name: str, crew: Crew) -> None:
        self.app = app
        self.broker = broker
        self.crew = crew
        self.prefetch_multiplier = crew.prefetch
        self.initial_prefetch_count = crew.slots * crew.prefetch
        self.hostname = name
        self.process = process(name)
        self.green = Kernel.here().spawn(self.process, self._work, "main")
        self.stopping = self.cold = self.closed = self.stopped = False
        self._heard: deque[Callable[[], object]] = deque()
        self._idle = False

    # What the steps and Celery's own code look for.

    state = state
    event_dispatcher = None
    disable_rate_limits = True
    connection_errors = (OSError,)
    restart_count = 0
    qos_global = True
    _maximum_prefetch_restored = True
    controller = property(lambda self: self)
    pool_cls = property(lambda self: _POOLS[self.crew.prefork])
    hub: Any = property(lambda self: self)

    def call_soon(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        self.hear(partial(call, *args, **kwargs))
        return call

    def add_reader(self, pipe: Pipe, heard: Callable[[], object]) -> None:
        pipe.worker, pipe.heard = self, heard

    def call_repeatedly(self, seconds: float, call: Callable[[], object]) -> Any:
        return self.timer.call_repeatedly(seconds, call)

    def on_task_request(self, request: Any) -> None:
        if self.semaphore is None:
            self._process_task(request)
        else:
            self.semaphore.acquire(self._process_task, request)

    def _process_task(self, request: Any) -> None:
        try:
            request.execute_using_pool(self.pool)
        except TaskRevokedError:
            if self.semaphore is not None:
                self.semaphore.release()

    # The loop.

    def stir(self) -> None:
        if self._idle:
            Kernel.here().wake(self.green)

    def hear(self, call: Callable[[], object]) -> None:
        """The main loop calls it, in the order in which it heard."""
        self._heard.append(call)
        self.stir()

    def hear_later(self, seconds: float, call: Callable[[], object]) -> None:
        self.timer.call_after(seconds, call)
        self.stir()

    def _work(self) -> None:
        self._start()
        kernel = Kernel.here()
        while not (self.stopping and self._is_through()):
            choices = list(self._choices())
            if choices:
                kernel.random.choice(choices)()
                kernel.pause("in its loop")
                continue
            self._idle = True
            kernel.wait(self._next_timer())
            self._idle = False
        self._end()

    def _start(self) -> None:
        self.on_task_message: set[Any] = set()
        self.task_buckets: Any = defaultdict(lambda: None)
        self.strategies = _Strategies(self)
        self.timer = Timer()
        self.semaphore: Any = LaxBoundedSemaphore(self.crew.slots) if self.crew.prefork else None
        self.steps = [
            symbol_by_name(name)
            for name in (*sorted(WORKER_STEPS), *CONSUMER_STEPS)
            if name != _OF_REVOCATIONS or self.crew.hears_revocations
        ]
        self.steps = [step(self) for step in self.steps]
        self.steps = [step for step in self.steps if step.include_if(self)]
        for step in self.steps:
            if isinstance(step, Sweeper):
                step._check_writes_at = math.inf  # by a key of its own, which concerns no task
        for step in self.steps:
            step.create(self)
        self.pool = (Prefork if self.crew.prefork else Threads)(self, self.crew.slots)
        self._connect()

    def _connect(self) -> None:
        self.channel = Channel(self.broker, self)
        self.connection = Connection()
        self.qos = QoS(lambda **_: None, self.initial_prefetch_count)
        self.task_consumer = TaskConsumer([self.app.amqp.queues["celery"]])
        for step in self.steps:
            if hasattr(step, "start") and not (self.restart_count and _is_of_worker(step)):
                step.start(self)
        self._handle = self.create_task_handler()
        for step in self.steps:
            if self.hub and hasattr(step, "register_with_event_loop"):
                step.register_with_event_loop(self, self.hub)
        self.broker.workers.append(self)

    def _disconnect(self) -> None:
        self.broker.workers.remove(self)
        self.channel.end()
        for step in self.steps:
            if hasattr(step, "stop") and not _is_of_worker(step):
                step.stop(self)

    def lose_connection(self) -> None:
        """It is noticed by the main loop, which connects anew."""

        def again() -> None:
            if self.stopping:
                return
            self.on_connection_error_after_connected(ConnectionResetError("it was cut"))
            self.on_close()
            self._disconnect()
            self.restart_count += 1
            self._connect()

        self.channel.end()
        self.hear(again)

    def _choices(self) -> Any:
        if self._heard:
            yield self._call_next
        if self._next_timer() == 0:
            yield self._tick
        if self.stopping and not self.closed:
            yield self._close
        if not self.stopping and len(self.channel.unacked) < self.qos.value:
            for queue in self.task_consumer.queues:
                if self.channel.open and self.broker.queues[queue.name]:
                    yield partial(self._take, queue.name)

    def _call_next(self) -> None:
        self._heard.popleft()()

    def _take(self, queue: str) -> None:
        sent = self.broker.queues[queue].popleft()
        Kernel.here().me().at = f"having been delivered {sent.task} from {queue}"
        self._handle(self.channel.deliver(sent))

    def _next_timer(self) -> float | None:
        queue = self.timer._queue
        while queue and queue[0][2].canceled:
            heappop(queue)
        if not queue:
            return None
        left = float(queue[0][0]) + INSTANT - Kernel.here().now
        return left if left > INSTANT / 2 else 0.0

    def _tick(self) -> None:
        heappop(self.timer._queue)[2]()

    # Its end.

    def stop(self) -> None:
        """A warm shutdown: what is in the slots is seen through."""
        self.stopping = True
        self.stir()

    def stop_cold(self) -> None:
        """What runs is cancelled, after the time that a soft shutdown leaves it."""
        self.hear(self._stop_cold)

    def _stop_cold(self) -> None:
        """As in a handler of a signal: meanwhile the main loop stands still."""
        WorkController.wait_for_soft_shutdown(self)
        self.cancel_active_requests()
        self.cold = self.stopping = True

    def revoke(self, task_id: str, *, terminate: bool) -> None:
        """All workers are told that, and forget it as they end."""
        told = SimpleNamespace(app=self.app, consumer=self)
        control.revoke(told, task_id, terminate=terminate and self.crew.prefork)

    def _close(self) -> None:
        self.on_close()
        self.pool.close()
        self.closed = True

    def _is_through(self) -> bool:
        return self.closed and (self.cold or not (self._heard or self.pool.busy))

    def _end(self) -> None:
        kernel = Kernel.here()
        if self.cold:
            self._end_children()
        self._disconnect()
        for child in getattr(self.pool, "children", ()):
            child.retires = True
            kernel.wake(child.green)
        while any(c.process.alive for c in getattr(self.pool, "children", ())):
            kernel.wait(0.1)
        for step in self.steps:
            if hasattr(step, "stop") and _is_of_worker(step):
                step.stop(self)
        children.have_the_last_word()
        for _, call in sorted(FINALIZERS.pop(self.process, ()), key=lambda each: -each[0]):
            call()
        self.stopped = True

    def _end_children(self) -> None:
        """With whatever they are at; what they have said before is heard, and who was cancelled."""
        pool = self.pool
        assert isinstance(pool, Prefork)
        for child in pool.children:
            Kernel.here().kill(child.process)
        while self._heard:
            self._call_next()
        for child in pool.children:
            if child.terminated:
                pool.lost(child)

    def die(self, *, with_children: bool) -> None:
        """Killed, with its children or without."""
        kernel = Kernel.here()
        kernel.kill(self.process)
        for child in getattr(getattr(self, "pool", None), "children", ()):
            if with_children:
                kernel.kill(child.process)
            else:
                child.retires = True
                kernel.wake(child.green)
        if self in self.broker.workers:
            self.broker.workers.remove(self)
        if hasattr(self, "channel"):
            self.channel.end()


def _is_of_worker(step: Any) -> bool:
    return f"{type(step).__module__}:{type(step).__name__}" in WORKER_STEPS
