"""Which class a URL names, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from celery_dlock.core.event_log import log
from celery_dlock.errors import ConfigurationError
from celery_dlock.registry import BACKENDS, SINKS, backend_class, sink_named
from celery_dlock.stores.base import LockBackend
from celery_dlock.stores.memory import MemoryBackend


@pytest.mark.parametrize("scheme", BACKENDS)
def test_every_scheme_of_the_table_names_a_store(scheme: str) -> None:
    assert issubclass(backend_class(f"{scheme}://"), LockBackend)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("reddiss://localhost", "reddiss://; did you mean 'rediss'"),
        ("quantum://localhost", r"known: .*etcd, .*memory, .*redis, .*sqlite"),
        ("consol://localhost", "did you mean 'consul'"),
        ("wrong://localhost", r"third_party_store:NotABackend.*no LockB"),
        ("absent://localhost", "imported from third_party_store:Absent"),
    ],
)
@pytest.mark.usefixtures("third_party")
def test_a_scheme_that_names_no_store_is_refused_and_the_nearest_named(url: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        backend_class(url)


@pytest.mark.usefixtures("third_party")
def test_a_third_party_adds_a_store_and_takes_over_none_of_the_library() -> None:
    assert backend_class("consul://localhost").__name__ == "ConsulBackend"
    assert backend_class("MEMORY://") is MemoryBackend


@pytest.mark.parametrize("url", ["localhost:6379", "redis:/localhost", "", "://x", "re dis://x"])
def test_a_url_without_a_scheme_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"as in redis://localhost:6379/2"):
        backend_class(url)


@pytest.mark.parametrize("url", ["reddis://:s3cret@host/0", "user:s3cret@host", ":s3cret@redis://"])
def test_a_password_never_shows_in_a_message(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        backend_class(url)

    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_missing_driver_is_answered_with_the_command_that_installs_it() -> None:
    said = run(
        "import sys; sys.modules['redis'] = None",
        "from celery_dlock.registry import backend_class",
        "try: backend_class('redis://:s3cret@localhost:6379/2')",
        "except Exception as error: print(type(error).__name__, error)",
    )

    command = 'pip install "celery-dlock[redis]"'
    assert said.startswith(f"ConfigurationError redis:// needs: {command} (")
    assert "s3cret" not in said


def test_a_mistake_in_the_library_is_no_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celery_dlock.stores.redis.store", None)

    with pytest.raises(ConfigurationError, match=r"imported from celery_dlock\.stores\.redis"):
        backend_class("redis://localhost")


def test_drivers_are_not_imported_before_they_are_asked_for() -> None:
    assert find_spec("redis") is not None
    assert run("import sys, celery_dlock.registry", "print('redis' in sys.modules)") == "False"


def run(*lines: str) -> str:
    code = "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution of somebody else's on the path, with its entry points."""
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[celery_dlock.backends]\n"
        "consul = third_party_store:ConsulBackend\n"
        "wrong = third_party_store:NotABackend\n"
        "absent = third_party_store:Absent\n"
        "memory = third_party_store:ConsulBackend\n"
    )
    (tmp_path / "third_party_store.py").write_text(
        "from celery_dlock.stores.memory import MemoryBackend\n"
        "class ConsulBackend(MemoryBackend): pass\n"
        "class NotABackend: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "third_party_store", raising=False)


@pytest.mark.parametrize("name", SINKS)
def test_every_exporter_of_the_table_can_be_made_for_an_app(name: str) -> None:
    assert callable(sink_named(name).from_app)


@pytest.mark.parametrize(
    "path", ["celery_dlock.core.event_log.log", "celery_dlock.core.event_log:log"]
)
def test_a_sink_is_found_by_its_dotted_path(path: str) -> None:
    assert sink_named(path) is log


def test_an_exporter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, "prometheus", ("surely_not_installed:Sink", "prometheus"))
    with pytest.raises(ConfigurationError, match=r'pip install "celery-dlock\[prometheus\]"'):
        sink_named("prometheus")


@pytest.mark.parametrize("path", ["shop.nowhere:count", "celery_dlock.core.events:nothing"])
def test_a_sink_that_is_not_there_is_an_error_with_its_name(path: str) -> None:
    with pytest.raises(ConfigurationError, match=path):
        sink_named(path)
