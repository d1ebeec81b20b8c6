"""What a browser makes of the page: hostile keys, a store that is away, a tab nobody sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_dlock.runtime import forget, runtime
from tests.services.brokers import over_folder
from tests.services.chromium import Browser
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.web.conftest import hold
from tests.web.page import Page, page_of

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.server("chromium")]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    folder = tmp_path_factory.mktemp("shop")
    made = Celery("shop", set_as_current=False)
    made.conf.update(
        **over_folder(folder),
        dlock_url=f"sqlite:///{folder / 'locks.db'}",
        dlock_history=f"sqlite:///{folder / 'history.db'}",
    )
    yield made
    forget(made)


@pytest.fixture(scope="module")
def page(shop: Celery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    runtime(shop).backend.sweep()  # as each worker does when it starts
    with page_of(shop, tmp_path_factory.mktemp("page"), "--writable") as page:
        yield page


def test_a_script_in_a_key_does_not_run(shop: Celery, visitor: Browser, page: Page) -> None:
    text = "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
    hold(shop, text, text, "waits")
    visitor.open(f"{page.at}/?waiting=1")
    visitor.shows(text)
    refreshed(visitor)
    visitor.open(f"{page.at}/?text=script")
    visitor.shows(text)
    refreshed(visitor)
    visitor.all("tbody th a")[0].click()
    visitor.shows("Held by")
    refreshed(visitor)
    assert visitor.text("h1") == text
    visitor.all("tbody th a")[0].click()
    visitor.shows("The task")
    assert visitor.run("return window.pwned") is None
    assert visitor.all("main img, main script") == []
    for path in (f"/?text={text}", f"/task?id={text}"):
        visitor.open(page.at + path)
        assert visitor.run("return window.pwned") is None


def refreshed(visitor: Browser) -> None:
    """The live part has asked for itself again, and was changed to what came."""
    visitor.run(
        "window.again = 0;"
        "document.addEventListener('htmx:afterSettle', () => { window.again += 1; });"
    )
    until("it asks again", lambda: visitor.run("return window.again") > 0)


def test_what_nobody_sees_asks_for_nothing(visitor: Browser) -> None:
    refreshed(visitor)
    visitor.run(
        "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        "window.wanted = 0;"
        "document.addEventListener('htmx:beforeRequest', () => { window.wanted += 1; });"
    )
    until("a request on its way is over", lambda: not visitor.all("#live.htmx-request"))
    visitor.asked_for()
    until("it would ask", lambda: visitor.run("return window.wanted") >= 2)
    assert [address for address in visitor.asked_for() if "/static/" not in address] == []
    visitor.run(
        "Object.defineProperty(document, 'hidden', { value: false });"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    until("it asks", visitor.asked_for)


def test_what_asks_again_leaves_scroll_and_selection_alone(shop: Celery, visitor: Browser) -> None:
    hold(shop, "order:still", "ship")
    visitor.width(650)  # a table still, and too narrow for it
    visitor.shows("order:still")
    visitor.run(
        "document.querySelector('.wide').scrollLeft = 20;"
        "const all = [...document.querySelectorAll('tbody th a')];"
        "const key = all.find(link => link.innerText === 'order:still');"
        "getSelection().selectAllChildren(key);"
    )
    before = visitor.text(".wide")
    refreshed(visitor)
    until("the time that it is held for has changed", lambda: visitor.text(".wide") != before)
    assert visitor.run("return document.querySelector('.wide').scrollLeft") == 20
    assert visitor.run("return String(getSelection())") == "order:still"


def test_a_store_that_is_away_is_told_and_what_is_shown_is_old(
    browser: Browser, own_redis_server: RedisServer, tmp_path: Path
) -> None:
    app = Celery("away", set_as_current=False)
    app.conf.update(**over_folder(tmp_path), dlock_url=own_redis_server.url)
    hold(app, "order:away", "ship")
    forget(app)
    with page_of(app, tmp_path) as page:
        browser.open(page.at)
        browser.shows("order:away")
        browser.shows("live, ", ".age")
        own_redis_server.kill()
        browser.shows("The lock store does not answer", "#trouble")
        browser.shows("old, ", ".age")
        browser.shows("order:away")
        own_redis_server.start()
        until("all is well", lambda: browser.text("#trouble") == "")
        browser.shows("Nothing is locked")
        page.kill()
        browser.shows("server does not answer", "#trouble")
