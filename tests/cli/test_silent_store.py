"""A store that hangs: whoever has waited for one answer in vain is not kept for another one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.events import Acquired, Subject
from celery_dlock.monitoring.history import HistorySink
from celery_dlock.stores.base import LockBackend
from tests.cli.operator import COMMANDS, Operator, operator
from tests.services.redis import RedisServer
from tests.services.require import require

pytestmark = [pytest.mark.server("redis"), pytest.mark.once]


@pytest.fixture(scope="module")
def hangs() -> Iterator[RedisServer]:
    """A server that takes connections and says nothing."""
    require("redis")
    with RedisServer() as server:
        server.pause()
        yield server


@pytest.fixture
def desk(hangs: RedisServer) -> Iterator[Operator]:
    options = {"socket_timeout": 0.2}
    with operator(dlock_url=hangs.url, dlock_backend_options=options) as made:
        yield made


def questions(backend: LockBackend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By name what *backend* is asked from now on."""
    asked: list[str] = []

    def noted(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            return operation(*arguments, **options)

        return ask

    for name in LockBackend.__abstractmethods__:
        operation = getattr(backend, name)
        if name not in ("from_url", "close"):
            monkeypatch.setattr(backend, name, noted(name, operation))
    return asked


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, ["beat"], ["show", "order:42", "--key"], ["show", "id", "--task"]],
    ids=" ".join,
)
def test_a_command_asks_it_once(
    desk: Operator, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = questions(desk.backend, monkeypatch)

    result = desk.run(*command)

    assert len(asked) == 1, asked
    assert result.exit_code == (0 if command == ["metrics"] else 1)
    assert "Timeout" in result.output or command == ["metrics"]
    if command[0] not in ("metrics", "show"):
        assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("scheme", "module", "patience"),
    [
        ("etcd", "celery_dlock.stores.etcd.client", "CONNECT_TIMEOUT"),
        ("zookeeper", "celery_dlock.stores.zookeeper.client", "ANSWER_TIMEOUT"),
    ],
)
@pytest.mark.parametrize("command", [["show", "order:42"], ["release", "order:42", "--yes"]])
def test_so_it_is_where_the_driver_has_errors_of_its_own(
    monkeypatch: pytest.MonkeyPatch, scheme: str, module: str, patience: str, command: list[str]
) -> None:
    monkeypatch.setattr(pytest.importorskip(module), patience, 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        operator(dlock_url=f"{scheme}://127.0.0.1:{silent.getsockname()[1]}") as desk,
    ):
        asked = questions(desk.backend, monkeypatch)

        result = desk.run(*command)

    assert (result.exit_code, asked) == (1, ["look"])


def test_what_the_history_tells_of_a_key_costs_no_question_more(
    desk: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    desk.app.conf.dlock_history = f"sqlite:///{tmp_path / 'history.db'}"
    sink = HistorySink.from_app(desk.app)
    sink(Acquired(Subject("pay-1", "shop.pay", "o"), ("order:42",), (1,), 0.1, 30.0))
    sink.flush(60)
    asked = questions(desk.backend, monkeypatch)

    result = desk.run("show", "order:42")

    assert (result.exit_code, asked) == (0, ["look"])
    assert "the lock store did not answer" in result.output
    assert "shop.pay" in result.output
