"""How the page looks: by day, by night, and on a telephone; the pictures of the documentation.

No pixel is compared with anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pictures.drawing import shows_page
from tests.pictures.scene import PAY, SHIP, busy_shop
from tests.services.chromium import Browser
from tests.web.page import Page, page_of

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.server("chromium")]

WHY = "the ledger is migrated, INC-204: ask in #payments"

#: In a script: the texts in tables for which one would have to scroll to the right.
OUT_OF_SIGHT = """return [...document.querySelectorAll('td, tbody th')]
    .filter(cell => Math.max(cell.getBoundingClientRect().right, cell.scrollWidth) > innerWidth)
    .map(cell => cell.innerText)"""
SCREENS = {
    "locks": "/",
    "waited": "/?waiting=1&task=shop",
    "unique": "/unique",
    "key": "/key?key=order%3A1002",
    "whole": "/key?key=order%3A1002&all=periods+events",
    "contention": "/contention",
    "dead": "/dead",
    "task": f"/task?id={PAY}",
}


@pytest.fixture
def page(tmp_path: Path, called_at_once: None) -> Iterator[Page]:
    with page_of(busy_shop(tmp_path), tmp_path, "--writable") as page:
        yield page


def test_it_is_to_be_read_by_day_by_night_and_on_a_telephone(
    visitor: Browser, page: Page, tmp_path: Path
) -> None:
    for scheme in ("light", "dark"):
        visitor.prefer(scheme)
        for name, path in SCREENS.items():
            visitor.open(page.at + path)
            screenshot = visitor.driver.get_screenshot_as_png()
            shows_page(f"page-{name}-{scheme}.png", screenshot, visitor.text("body"))
            assert (brightness(visitor) < 60) is (scheme == "dark"), f"{name} is not {scheme}"
            assert visitor.text("h1")
            if name == "task":
                behind = f"behind {SHIP} (shop.ship on celery@web2:417), which has held it since"
                assert behind in visitor.text("main")
            if name == "key":
                assert "holds it" in visitor.text("main")
    visitor.width(400)
    for name, path in SCREENS.items():
        visitor.open(page.at + path)
        fits(visitor, name, tmp_path)


def test_a_key_is_put_on_hold_by_hand(visitor: Browser, page: Page, tmp_path: Path) -> None:
    visitor.width(400)
    visitor.open(f"{page.at}/key?key=account%3A17")
    visitor.all("#hold")[0].click()
    fits(visitor, "hold", tmp_path)
    visitor.all("#because")[0].send_keys(WHY)
    visitor.all("button")[0].click()
    visitor.shows(WHY, ".banner")
    fits(visitor, "key-on-hold", tmp_path)
    visitor.open(page.at)
    visitor.shows(WHY)
    fits(visitor, "locks-on-hold", tmp_path)
    visitor.open(f"{page.at}/key?key=account%3A17")
    visitor.all("#end-hold")[0].click()
    visitor.all("button")[0].click()
    visitor.shows("account:17 is on hold no more")


def fits(visitor: Browser, name: str, tmp_path: Path) -> None:
    """The page called *name* is no wider than a telephone."""
    visitor.driver.save_screenshot(str(tmp_path / f"page-{name}-narrow.png"))
    wide = visitor.run("return document.documentElement.scrollWidth")
    assert wide <= 400, f"{name} is {wide} wide"
    out_of_sight = visitor.run(OUT_OF_SIGHT)
    assert out_of_sight == [], f"{name}: nobody would look for {out_of_sight}"


def brightness(visitor: Browser) -> float:
    """Of what is behind the texts, from 0 to 255."""
    color: str = visitor.run("return getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) for part in color[4:-1].split(","))
    return (red + green + blue) / 3
