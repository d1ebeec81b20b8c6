"""Defects planted in shipped code: what a function does is changed, however it is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar
from unittest import mock

import pytest

T = TypeVar("T")

#: What a spoilt function does; it gets the shipped one first, and then what that is called with.
Instead = Callable[..., Any]


@contextmanager
def planted(owner: ModuleType | type, name: str, instead: Instead) -> Iterator[None]:
    """*name* of *owner* does what *instead* does, also for modules that have imported it."""
    whole = getattr(owner, name)

    @wraps(whole)
    def spoilt(*args: Any, **kwargs: Any) -> Any:
        return instead(whole, *args, **kwargs)

    with ExitStack() as patches:
        for user in [owner] if isinstance(owner, type) else _modules():
            for attribute in [n for n, value in vars(user).items() if value is whole]:
                patches.enter_context(mock.patch.object(user, attribute, spoilt))
        yield


def _modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith("celery_dlock.")]


def one_in_every_run(defects: Mapping[str, T], quick: str) -> list[Any]:
    """Parameters of a test: ``make planted`` runs them all, and ``make test`` the *quick* one."""
    return [
        pytest.param(defect, id=name, marks=() if name == quick else pytest.mark.planted)
        for name, defect in defects.items()
    ]
