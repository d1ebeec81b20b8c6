"""Every instant at which the interpreter lets somebody interrupt a thread, one after the other."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec

from celery_dlock import LockLost
from celery_dlock.delivery import abort
from celery_dlock.delivery.abort import OtherThread, this_thread

P = ParamSpec("P")

#: Whose lines count.
FILES = {abort.__file__}

#: Behind these the interpreter looks whether somebody interrupts it.
LOOKS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}


class Instant:
    """Does something in another thread, at the *number*-th instant of this one's way.

    Its way through what aborts, and through *files*.
    """

    def __init__(self, number: int, what: Callable[[], None], files: set[str]) -> None:
        self.left = number
        self._files = FILES | files
        self._what = what
        self._last: dict[FrameType, int] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if before is not None and _opname(frame, before) in LOOKS and not _kept_out():
                self.left -= 1
                if self.left == 0:
                    in_another_thread(self._what)
        return self.trace

    def forget(self) -> None:
        """Frames keep what they had in hand: a cursor, say."""
        self._last.clear()


def _kept_out() -> bool:
    """Whether who strikes would have to wait for this thread's mutex."""
    return isinstance(this_thread(), OtherThread) and this_thread().mutex.locked()


def _opname(frame: FrameType, offset: int) -> str:
    return dis.opname[frame.f_code.co_code[offset]]


def in_another_thread(what: Callable[[], Any]) -> None:
    """Not before this one has started it: ``start()`` has a way of its own with exceptions."""
    started = threading.Event()

    def then() -> None:
        started.wait()
        what()

    thread = threading.Thread(target=then)
    thread.start()
    started.set()
    thread.join()


def outcome(call: Callable[[], str], instant: Instant) -> str:
    """What *call* returns, or the key whose loss ended it."""
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it here
    sys.settrace(instant.trace)
    try:
        return call()
    except LockLost as error:
        return error.key if type(error) is LockLost else repr(type(error))
    finally:
        sys.settrace(before)
        instant.forget()


def struck(
    call: Callable[[], object], number: int, files: Collection[str | None], error: type[Exception]
) -> bool:
    """Whether *call* has a *number*-th instant in *files*; *error* is raised in it there."""
    left, last = number, dict[FrameType, int]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before, last[frame] = last.get(frame), frame.f_lasti
            if before is not None and _opname(frame, before) in LOOKS:
                left -= 1
                if left == 0:
                    raise error
        return trace

    usual = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it here
    sys.settrace(trace)
    try:
        call()
    except error:
        pass
    finally:
        sys.settrace(usual)
    return left <= 0


def in_a_thread_of_its_own(test: Callable[P, None]) -> Callable[P, None]:
    """A *test* that strikes: where an ``except`` block is left in the middle of an instruction, the
    interpreter takes its exception for the one that is being handled, as long as the thread lives.
    """

    @wraps(test)
    def in_thread(*args: P.args, **options: P.kwargs) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, *args, **options).result()

    return in_thread


def every_instant(scenario: Callable[[int], tuple[str, bool]]) -> list[str]:
    """The outcomes of *scenario*, from its first instant to its last."""
    outcomes: list[str] = []
    over = False
    while not over:
        found, over = scenario(len(outcomes) + 1)
        outcomes.append(found)
        # Nothing is left that could strike who comes next, or keep it from being struck
        assert this_thread().top is None
        assert this_thread().mutex.acquire(blocking=False)
        this_thread().mutex.release()
    return outcomes
