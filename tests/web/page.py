"""``celery dlock web`` as a process of its own, beside the workers of a lab."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from tests.services.ports import free_ports
from tests.services.server_process import ServerProcess

TOKEN = "what-only-operators-know"


class Page(ServerProcess):
    """The page of the lab whose configuration is *config*."""

    program = "dlock-web"

    def __init__(self, config: Mapping[str, Any], *options: str) -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self._config = config
        self._options = options

    @property
    def at(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def signed_in(self) -> str:
        """Where one signs in, and is led to the first page."""
        return f"{self.at}/sign-in?token={TOKEN}"

    def begin(self) -> None:
        (self.folder / "config.json").write_text(json.dumps(self._config))
        self.run(
            *(sys.executable, "-m", "celery", "-A", "tests.services.lab:app", "dlock", "web"),
            *("--port", str(self.port), *self._options),
        )

    def surroundings(self) -> Mapping[str, Any]:
        root = Path(__file__).parents[2]
        names = {"LAB_CONFIG": str(self.folder / "config.json"), "DLOCK_WEB_TOKEN": ""}
        if "--writable" in self._options:
            names["DLOCK_WEB_TOKEN"] = TOKEN
        return {"cwd": root, "env": {**os.environ, **names}}

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/static/icon.svg")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def page_of(app: Celery, folder: Path, *options: str) -> Page:
    """The page of *app*, which is configured here, with what its tasks need in *folder*."""
    names = ("broker_url", "broker_transport", "broker_transport_options", "dlock_url")
    settings = {name: app.conf[name] for name in (*names, "dlock_history") if app.conf.get(name)}
    return Page({"folder": str(folder), "celery": settings}, *options)
