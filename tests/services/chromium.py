"""Debian's Chromium without a window, driven by its own driver; neither of them downloads anything.

It notes what a page does wrong and which addresses it asks for.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.services.require import require
from tests.services.started import Started
from tests.services.until import until

_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1100,800"),
)


class Browser(Started):
    """One browser with one page. What it finds is looked for again until it is there."""

    def __init__(self) -> None:
        self._driver: Chrome | None = None
        self._folder = ""

    @property
    def driver(self) -> Chrome:
        assert self._driver is not None, "not started"
        return self._driver

    def start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="dlock-chromium-")
        options = ChromeOptions()
        options.binary_location = str(require("chromium"))
        for flag in (*_QUIET, f"--user-data-dir={self._folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(executable_path=str(require("chromedriver")))
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("no_proxy", "*")  # a proxy of this machine does not know its driver
            self._driver = Chrome(options=options, service=service)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.quit()
            self._driver = None
        shutil.rmtree(self._folder, ignore_errors=True)  # a child may write its last

    def open(self, address: str) -> None:
        self.driver.get(address)

    def text(self, selector: str = "main") -> str:
        """What is to be read there; nothing while another page is on its way."""
        script = "return document.querySelector(arguments[0])?.innerText"
        try:
            return self.run(script, selector) or ""
        except WebDriverException:
            return ""

    def shows(self, text: str, selector: str = "main") -> None:
        """Return when it is to be read there."""
        until(f"{text!r} on the page", lambda: text in self.text(selector))

    def shows_no(self, text: str, selector: str = "main") -> None:
        """Return when it is not to be read there any more."""
        until(
            f"no {text!r} on the page",
            lambda: (found := self.text(selector)) != "" and text not in found,
        )

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def keys(self, *keys: str) -> None:
        """Strike *keys* wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self) -> str:
        """The text of what has the focus."""
        return str(self.run("return document.activeElement.innerText || ''")).strip()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def prefer(self, scheme: str) -> None:
        """Light or dark, as the visitor's system would say."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def width(self, pixels: int) -> None:
        """The page has so many from now on; 0 for as many as the window has."""
        size = {"width": pixels, "height": 800 if pixels else 0}
        self.command(
            "Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False
        )

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def complaints(self) -> list[str]:
        """Failures of scripts, and what a policy has forbidden, since this was asked last."""
        found = self._log("browser")
        return [each["message"] for each in found if each["source"] in ("javascript", "security")]

    def asked_for(self) -> list[str]:
        """The addresses that pages have asked for since this was asked last."""
        messages = [json.loads(e["message"])["message"] for e in self._log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def _log(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log(name)
        return found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One for the whole run: a test forgets its cookies first."""
    require("chromium")
    require("chromedriver")
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """As if it had just been started."""
    chromium.open("about:blank")
    chromium.command("Network.clearBrowserCookies")
    chromium.prefer("light")
    chromium.width(0)
    chromium.complaints()
    chromium.asked_for()
    return chromium
