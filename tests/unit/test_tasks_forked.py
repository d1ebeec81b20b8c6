"""A forked process keeps the clients of its parent, and has its own for what it does."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable

import pytest
from celery import Celery

from celery_dlock import lock
from celery_dlock.runtime import forget, runtime
from tests.services.forked import alone, fork_unheard, in_a_forked_child

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.parametrize("fork", [os.fork, fork_unheard]),
]


def new_app() -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.dlock_url = "memory://"
    return app


def test_a_forked_child_leaves_its_parents_store_alone(fork: Callable[[], int]) -> None:
    alone(_keeps_the_store_of_its_parent, fork)


def test_what_a_forked_child_takes_it_gives_back(fork: Callable[[], int]) -> None:
    alone(_gives_back_what_it_takes, fork)


def _keeps_the_store_of_its_parent(fork: Callable[[], int]) -> None:
    app = new_app()
    parents = weakref.ref(runtime(app).backend)

    def child() -> None:
        forget(app)
        gc.collect()
        assert parents() is not None
        assert runtime(app).backend is not parents()

    in_a_forked_child(child, fork)


def _gives_back_what_it_takes(fork: Callable[[], int]) -> None:
    app = new_app()
    with lock("a", app=app):  # the parent has a store, and a thread that renews
        pass

    def child() -> None:
        with lock("b", app=app):
            (state,) = runtime(app).backend.look(["b"])
            assert state.holders
        (state,) = runtime(app).backend.look(["b"])
        assert not state.holders

    in_a_forked_child(child, fork)
