"""What is written by mistake is refused where it is written, before any message comes.

The lines are those in which type checkers find what types can say: ``tests/typing/misuses.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from celery import Celery

from celery_dlock import ConfigurationError, LockedTask, locked_task
from tests.typing import misuses


def charge(order: str, amount: int = 1) -> None: ...


@pytest.mark.parametrize("what", misuses.TASKS)
def test_the_decorator_refuses(app: Celery, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    write, said = misuses.TASKS[what]
    monkeypatch.setattr(misuses, "locked_task", partial(locked_task, app=app, name="charge"))
    decorate: Any = write()

    with pytest.raises(ConfigurationError, match=said) as caught:
        decorate(charge)

    assert str(caught.value).startswith("task charge: ")


@pytest.mark.parametrize("what", misuses.TASKS)
def test_with_base_finalizing_the_app_refuses(
    app: Celery, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def decorator(*key: Any, **options: Any) -> Any:
        options |= {"key": key[0]} if key else {}
        ours = {f"lock_{name}": value for name, value in options.items()}
        return app.task(base=LockedTask, name="charge", shared=False, **ours)

    write, said = misuses.TASKS[what]
    monkeypatch.setattr(misuses, "locked_task", decorator)
    decorate: Any = write()
    decorate(charge)

    with pytest.raises(ConfigurationError, match=said) as caught:
        app.finalize()

    assert str(caught.value).startswith("task charge: ")


@pytest.mark.parametrize("what", misuses.ELSEWHERE)
def test_so_does_a_block_and_what_is_given_to_tasks(what: str) -> None:
    write, said = misuses.ELSEWHERE[what]

    with pytest.raises(ConfigurationError, match=said):
        write()


@pytest.mark.parametrize("said", misuses.PYTHONS)
def test_so_does_python_what_cannot_be_called_like_that(said: str) -> None:
    with pytest.raises(TypeError, match=said):
        misuses.PYTHONS[said]()
