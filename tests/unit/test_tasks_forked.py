"""A process that was forked off keeps the clients of its parent, and closes none of them."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
from celery import Celery

from celery_dlock.tasks.runtime import runtime


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_store_of_the_parent_is_not_taken_apart_in_a_forked_child() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.dlock_url = "memory://"
    parents = weakref.ref(runtime(app).backend)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            gc.collect()
            assert runtime(app).backend is not parents()
            code = 0 if parents() is not None else 2
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
