"""The page as a person sees it: a real browser, a real server, and workers at work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from celery_dlock.ops.gauges import Gauges
from celery_dlock.runtime import runtime
from tests.services.brokers import close, kept_in_sqlite, over_folder
from tests.services.chromium import Browser
from tests.services.lab import Lab
from tests.services.until import until
from tests.services.worker import Worker
from tests.web.conftest import die, free, hold, holders
from tests.web.page import Page

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.server("chromium")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    history = {"dlock_history": f"sqlite:///{folder / 'history.db'}"}
    settings = {**over_folder(folder), **kept_in_sqlite(folder), **history}
    made = Lab(folder, {"celery": settings, "lock": {"policy": "queue as published"}})
    yield made
    close(made.app)


@pytest.fixture(scope="module")
def page(lab: Lab) -> Iterator[Page]:
    runtime(lab.app).backend.sweep()  # as each worker does when it starts
    with Page(lab.config, "--writable") as page:
        yield page


@pytest.fixture(scope="module")
def worker(lab: Lab) -> Iterator[Worker]:
    with lab.worker("threads") as worker:
        yield worker


#: In a script: the row of a key is the one of all ROWS that IS_IT.
IS_IT = "const isIt = row => row.cells[0].innerText === arguments[0];"
ROWS = "[...document.querySelectorAll('tbody tr')]"


def apply(lab: Lab, order: str, **options: Any) -> Any:
    return lab.app.tasks["apply"].delay(order, **options)


@pytest.mark.usefixtures("called_at_once")
def test_dead_and_replayed_its_task_runs(
    lab: Lab, visitor: Browser, page: Page, request: pytest.FixtureRequest
) -> None:
    hold(lab.app, "order:dead", "before")
    sent = apply(lab, "dead")
    free(lab.app, "order:dead")
    die(lab.app, "order:dead", f"{sent.id}:0:0")

    visitor.open(f"{page.at}/dead")
    visitor.shows(sent.id)
    visitor.all("td a[href*=replay]")[0].click()
    visitor.shows("may be done again")
    visitor.all("button")[0].click()
    visitor.shows("waits for order:dead again")
    visitor.shows("There are no dead letters.")

    request.getfixturevalue("worker")
    lab.journal.wait_for("end", order="dead")


@pytest.mark.usefixtures("worker")
def test_a_lock_appears_and_goes_without_a_reload(lab: Lab, visitor: Browser) -> None:
    visitor.run("window.loaded = 1; document.querySelector('#task').value = 'typed'")
    visitor.shows_no("order:appears")
    sent = apply(lab, "appears", hold="appears")
    visitor.shows("order:appears")
    visitor.shows(sent.id)
    until("it is counted", lambda: held(visitor) == Gauges.of(lab.app).held_keys > 0)
    lab.go("appears")
    visitor.shows_no("order:appears")
    until("it is counted no more", lambda: held(visitor) == Gauges.of(lab.app).held_keys)
    kept = visitor.run("return [window.loaded, document.querySelector('#task').value]")
    assert kept == [1, "typed"]


@pytest.mark.usefixtures("worker")
def test_a_queue_drains_and_the_focus_stays(lab: Lab, visitor: Browser, page: Page) -> None:
    visitor.open(f"{page.at}/?waiting=1")
    apply(lab, "grows", hold="grows")
    lab.journal.wait_for("start", order="grows")
    apply(lab, "grows", number=1)
    until("one waits", lambda: waiting(visitor, "order:grows") == "1")
    visitor.run(f"{IS_IT} {ROWS}.find(isIt).cells[0].querySelector('a').focus()", "order:grows")
    visitor.run("window.loaded = 1")
    assert visitor.focused() == "order:grows"
    for number in (2, 3):
        apply(lab, "grows", number=number)
    until("three wait", lambda: waiting(visitor, "order:grows") == "3")
    assert visitor.focused() == "order:grows"
    lab.go("grows")
    visitor.shows_no("order:grows")
    assert visitor.run("return window.loaded") == 1


def test_the_keyboard_alone_releases_a_holder(lab: Lab, visitor: Browser, page: Page) -> None:
    hold(lab.app, "order:stuck", "stuck")
    visitor.open(f"{page.at}/key?key=order%3Astuck")
    visitor.shows("Release…")

    visitor.keys(Keys.TAB)
    assert visitor.focused() == "Skip to the content"
    tab_to(visitor, "Release…")
    visitor.keys(Keys.ENTER)
    visitor.shows("NOT stopped")
    assert holders(lab.app, "order:stuck") == ["stuck:0:0"]
    tab_to(visitor, "Release the key")
    visitor.keys(Keys.ENTER)

    visitor.shows("order:stuck is released; stuck (")
    visitor.shows("Nobody holds it.")
    assert holders(lab.app, "order:stuck") == []


def waiting(visitor: Browser, key: str) -> str | None:
    """How many wait for *key*, as the list says."""
    found: str | None = visitor.run(f"{IS_IT} return {ROWS}.find(isIt)?.cells[1].innerText", key)
    return found


def held(visitor: Browser) -> int:
    """How many keys are, as the summary says."""
    return int(visitor.text("#summary b"))


def tab_to(visitor: Browser, text: str) -> None:
    for _ in range(30):
        visitor.keys(Keys.TAB)
        if visitor.focused() == text:
            return
    raise AssertionError(f"thirty tabs do not lead to {text!r}")
