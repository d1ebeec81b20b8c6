"""What happens in a forked child, told by whether it ended well."""

from __future__ import annotations

import ctypes
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context


def fork_unheard() -> int:
    """As C code forks, such as uWSGI: none of Python's hooks is called.

    Only in a process of its own (:func:`alone`). A child whose parent had a thread that waited for
    its turn in the interpreter hangs, for it waits for that thread to go on, which it does not
    have; Python's hook would make the turns anew. Threads that only sleep do no harm.
    """
    time.sleep(0.05)  # as those do then which have just been told something
    return int(ctypes.PyDLL(None).fork())


def alone(what: Callable[..., object], *args: object) -> None:
    """Run *what*, a function of a module, in a new process; fails if it raises there, or hangs."""
    process = get_context("forkserver").Process(target=what, args=args)
    process.start()
    process.join(60)
    process.kill()
    process.join()
    assert process.exitcode == 0


def in_a_forked_child(what: Callable[[], object], fork: Callable[[], int] = os.fork) -> None:
    """Run *what* in a child process; fails if it raises there."""
    pid = fork()
    if pid == 0:
        code = 1
        try:
            what()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
