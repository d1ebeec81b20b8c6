"""``dlock web``: what it serves, to whom, and what it prints."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result
from starlette.types import ASGIApp

from celery_dlock.cli.serve import web
from celery_dlock.runtime import forget, runtime
from tests.cli.terminal import dlock
from tests.services.until import until
from tests.web.conftest import hold
from tests.web.page import TOKEN, Page, page_of
from tests.web.visitor import Visitor

pytestmark = pytest.mark.once

HERE, THERE = "http://127.0.0.1:8460", "http://10.1.2.3:8460"


class Served:
    """What was handed to the server, and what was printed meanwhile."""

    def __init__(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        self._app = app
        self._sites: list[ASGIApp] = []
        self.options: dict[str, Any] = {}
        monkeypatch.setattr("uvicorn.run", self._run)
        monkeypatch.setattr("celery_dlock.cli.serve._listen_once", lambda host, port: None)
        monkeypatch.delenv("DLOCK_WEB_TOKEN", raising=False)

    def _run(self, site: ASGIApp, **options: Any) -> None:
        self._sites.append(site)
        self.options = options

    def by(self, *arguments: str, **names: str) -> Result:
        return CliRunner(env=names).invoke(web, arguments, obj=SimpleNamespace(app=self._app))

    def visitor(self, at: str = HERE) -> Visitor:
        return Visitor(self._sites[-1], at)


@pytest.fixture
def served(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Served:
    runtime(app).backend.sweep()  # as each worker does when it starts
    forget(app)
    return Served(app, monkeypatch)


@pytest.fixture
def page(app: Celery, tmp_path: Path) -> Iterator[Page]:
    with page_of(app, tmp_path) as page:
        yield page


def test_as_it_is_it_serves_this_host_for_reading(app: Celery, page: Page) -> None:
    hold(app, "order:42", "ship")

    assert f"{page.at}/" in page.log.read_text()
    assert "order:42" in asked(page, f"127.0.0.1:{page.port}")
    assert "order:42" in asked(page, f"localhost:{page.port}")
    for host in ("evil.example", f"127.0.0.1.evil.example:{page.port}", "", "10.0.0.1", "[::"):
        assert "order:42" not in asked(page, host), host
    assert "read-only" in asked(page, "localhost", "/release?key=order:42&owner=x")


def test_it_makes_no_store_and_shows_one_that_comes(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(app, monkeypatch)
    served.by()

    said = served.visitor().get("/")
    assert said.status_code == 503
    assert f"there is no lock store {tmp_path / 'locks.db'}" in said.text
    assert not (tmp_path / "locks.db").exists()

    worker = Celery("shop", set_as_current=False)
    worker.conf.update(broker_url="memory://", dlock_url=app.conf.dlock_url)
    hold(worker, "order:42", "ship")
    forget(worker)
    until("it is looked at again", lambda: "order:42" in served.visitor().get("/").text)


def test_an_address_that_is_taken_is_said_to_be(app: Celery, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        "app = Celery('shop', broker='memory://')\n"
        f"app.conf.dlock_url = {app.conf.dlock_url!r}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        done = dlock(tmp_path, "web", "--port", str(port), env={"DLOCK_WEB_TOKEN": ""})

    assert done.returncode == 1
    assert f"cannot listen at http://127.0.0.1:{port}/: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr
    assert "http" not in done.stdout, "somebody else answers there"


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_where_nobody_can_listen_no_token_is_told(app: Celery, host: str) -> None:
    said = CliRunner(env={"DLOCK_WEB_TOKEN": ""}).invoke(
        web, ["--host", host], obj=SimpleNamespace(app=app)
    )

    assert said.exit_code == 1
    assert said.stderr.startswith(f"Error: cannot listen at http://{host}:8460/: ")
    assert said.stdout == ""


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (bytes(range(128, 160)) + b"\n", "is not a text"),
        (b"\n", "the token of the page needs 16 characters or more"),
    ],
)
def test_a_file_that_has_no_token_is_said_to_have_none(
    served: Served, tmp_path: Path, written: bytes, says: str
) -> None:
    (tmp_path / "token").write_bytes(written)

    said = served.by("--token-file", str(tmp_path / "token"))

    assert said.exit_code == 1
    assert says in said.output
    assert "Traceback" not in said.output


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.2"])
def test_it_answers_by_its_address_and_its_names(served: Served, host: str) -> None:
    printed = served.by("--host", host).output.strip()

    for at in (printed, HERE):
        assert served.visitor(at).get("/").status_code == 200
    assert served.visitor("http://evil.example").get("/").status_code == 421


def asked(page: Page, host: str, path: str = "/") -> str:
    """What *page* says to a browser that thinks it speaks to *host*."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    try:
        connection.putrequest("GET", path, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_to_act_takes_a_token_that_is_printed_once(served: Served) -> None:
    printed = served.by("--writable", "--port", "9000").stdout.split()

    (address,) = printed
    start, _, token = address.partition("sign-in?token=")
    assert start == "http://127.0.0.1:9000/"
    assert len(token) >= 32
    visitor = served.visitor()
    assert visitor.get("/").status_code == 401
    assert visitor.get("/sign-in", params={"token": token}).status_code == 303
    assert "read-only" not in visitor.get("/cancel?key=a&task=b").text
    assert served.by("--writable").stdout.split() != printed
    assert served.options["access_log"] is False, "it would tell the token"


def test_another_host_reads_with_the_token_only(served: Served) -> None:
    said = served.by("--host", "10.1.2.3")

    assert "not encrypted" in said.stderr
    visitor = served.visitor(THERE)
    assert visitor.get("/").status_code == 401
    visitor.get("/sign-in", params={"token": said.stdout.strip().partition("token=")[2]})
    assert visitor.get("/").status_code == 200
    assert "read-only" in visitor.get("/cancel?key=a&task=b").text


def test_a_token_that_is_given_is_not_printed(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")

    for said in (served.by("--token-file", str(file)), served.by(DLOCK_WEB_TOKEN=TOKEN)):
        assert TOKEN not in said.output
        visitor = served.visitor()
        assert visitor.get("/").status_code == 401
        assert visitor.get("/sign-in", params={"token": TOKEN}).status_code == 303


@pytest.mark.parametrize(
    ("names", "conf", "says"),
    [
        ({"DLOCK_WEB_TOKEN": "short"}, {}, "16 characters"),
        ({}, {"dlock_url": "memory://"}, "cannot be seen from here"),
        ({}, {"dlock_ttl": -1}, "dlock_ttl"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    app: Celery, served: Served, names: dict[str, str], conf: dict[str, Any], says: str
) -> None:
    app.conf.update(conf)

    said = served.by(**names)

    assert said.exit_code == 1
    assert says in said.stderr
    assert "Traceback" not in said.output
