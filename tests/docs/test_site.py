"""The documentation as a site: built without a warning, served as files, and opened in a browser.

It is as wide as a telephone, asks nobody else for anything, and is searched with words that people
bring from elsewhere. Its pictures lie in the folder of the test.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.services.chromium import Browser, browser, chromium
from tests.services.until import until

__all__ = ["browser", "chromium"]

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.server("chromium")]

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index", "tutorial", "how-to/which-one", "reference/settings", "reference/api")

#: What people type, and the page that has to be among the first three.
SEARCHES = {
    "SET NX": "how-to/replace-your-own-lock",
    "mutex": "how-to/outside-tasks",
    "redis lock": "how-to/outside-tasks",
    "semaphore": "how-to/limit-how-many",
    "singleton": "how-to/publish-once",
    "celery duplicate tasks": "how-to/publish-once",
    "task runs twice": "questions",
    "celery-once alternative": "how-to/from-celery-once",
    "celery-singleton": "how-to/from-celery-once",
    "one task at a time": "how-to/which-one",
    "FIFO": "how-to/wait-in-order",
    "throttle": "how-to/limit-the-rate",
    "idempotency": "how-to/idempotency-keys",
    "exactly once": "how-to/fence-a-write",
    "high availability beat": "how-to/singleton-beat",
    "visibility timeout": "questions",
}


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    build = (sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "docs", str(folder))
    subprocess.run(build, check=True, cwd=ROOT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_it_is_to_be_read_by_day_by_night_and_on_a_telephone(
    browser: Browser, site: str, tmp_path: Path
) -> None:
    for page in PAGES:
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            for width in (1280, 400):
                browser.width(width)
                browser.open(f"{site}/{page}.html")
                picture = f"{page.replace('/', '-')}-{scheme}-{width}.png"
                browser.driver.save_screenshot(str(tmp_path / picture))
                assert browser.text("h1")
                assert browser.run("return document.documentElement.scrollWidth") <= width, picture
    assert browser.complaints() == []
    assert [at for at in browser.asked_for() if not at.startswith((site, "data:"))] == []


@pytest.mark.parametrize("words", SEARCHES)
def test_what_people_type_finds_its_page(browser: Browser, site: str, words: str) -> None:
    browser.open(f"{site}/search.html?q={words}")
    until("the search is over", lambda: "found" in browser.text("#search-results p"))

    links = [str(link.get_attribute("href")) for link in browser.all("#search-results li > a")]

    first = [re.split("[?#]", link.removeprefix(site))[0] for link in links[:3]]
    assert f"/{SEARCHES[words]}.html" in first


def test_the_reference_shows_what_one_writes(browser: Browser, site: str) -> None:
    browser.open(f"{site}/reference/api.html")

    signatures = [signature.text for signature in browser.all("dt.sig")]

    assert sum("celery_dlock.locked_task(" in signature for signature in signatures) == 1
    assert [signature for signature in signatures if "<" in signature] == []
