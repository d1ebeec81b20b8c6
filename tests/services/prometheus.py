"""A real Prometheus of our own, which scrapes one address each second."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tests.services.ports import free_ports
from tests.services.server_process import ServerProcess


class PrometheusServer(ServerProcess):
    """Scrapes *target*, ``host:port``, and goes by the *rules* of that file."""

    program = "prometheus"

    def __init__(self, target: str, rules: str | None = None) -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self._config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules] if rules else [],
            "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": [target]}]}],
        }

    def begin(self) -> None:
        config = self.folder / "prometheus.yml"
        config.write_text(json.dumps(self._config))  # which is YAML, too
        self.run(
            self.program,
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready"):
                return True
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that it gives now. Raises ``ValueError`` with what Prometheus has against
        *expression*.
        """
        asked = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{asked}"
        try:
            with urllib.request.urlopen(url) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as exc:
            raise ValueError(f"{expression}: {exc.read().decode()}") from exc
