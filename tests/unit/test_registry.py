"""Which class a URL names, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from celery_dlock.core.event_log import log
from celery_dlock.errors import ConfigurationError
from celery_dlock.registry import BACKENDS, SINKS, backend_class, open_backend, sink_named
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.memory import MemoryBackend


@pytest.mark.parametrize("scheme", BACKENDS)
def test_every_scheme_of_the_table_names_a_store(scheme: str) -> None:
    assert issubclass(backend_class(f"{scheme}://"), LockBackend)


def test_a_store_is_opened_from_its_url() -> None:
    assert isinstance(open_backend("memory://", BackendOptions()), MemoryBackend)


def test_schemes_are_read_in_any_case() -> None:
    assert backend_class("MEMORY://") is MemoryBackend


def test_an_unknown_scheme_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="reddiss://; did you mean 'rediss'"):
        backend_class("reddiss://localhost")


def test_a_scheme_like_no_other_is_answered_with_the_list() -> None:
    with pytest.raises(ConfigurationError, match=r"known: etcd, .*memory, .*redis, .*sqlite"):
        backend_class("quantum://localhost")


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
    # Given a process in which the redis package cannot be imported
    said = run(
        "import sys; sys.modules['redis'] = None",
        "from celery_dlock.registry import backend_class",
        "try: backend_class('redis://:s3cret@localhost:6379/2')",
        "except Exception as error: print(type(error).__name__, error)",
    )

    command = 'pip install "celery-dlock[redis]"'
    assert said.startswith(f"ConfigurationError redis:// needs: {command} (")
    assert "s3cret" not in said


def test_a_mistake_inside_the_library_is_not_called_a_missing_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
def provide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("provide")
class TestAThirdParty:
    def test_adds_a_store_by_an_entry_point(self) -> None:
        assert backend_class("consul://localhost").__name__ == "ConsulBackend"

    def test_is_offered_when_a_name_is_misspelt(self) -> None:
        with pytest.raises(ConfigurationError, match="did you mean 'consul'"):
            backend_class("consol://localhost")

    def test_cannot_take_over_a_scheme_of_the_library(self) -> None:
        assert backend_class("memory://") is MemoryBackend

    def test_is_told_when_its_class_is_no_store(self) -> None:
        with pytest.raises(ConfigurationError, match=r"third_party_store:NotABackend.*no LockB"):
            backend_class("wrong://localhost")

    def test_is_told_when_its_class_is_not_there(self) -> None:
        with pytest.raises(ConfigurationError, match="imported from third_party_store:Absent"):
            backend_class("absent://localhost")


@pytest.mark.parametrize("name", SINKS)
def test_every_exporter_of_the_table_can_be_made_for_an_app(name: str) -> None:
    assert callable(sink_named(name).from_app)


@pytest.mark.parametrize(
    "path", ["celery_dlock.core.event_log.log", "celery_dlock.core.event_log:log"]
)
def test_a_sink_is_found_by_its_dotted_path(path: str) -> None:
    assert sink_named(path) is log


def test_an_exporter_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SINKS, "prometheus", ("surely_not_installed:Sink", "prometheus"))
    with pytest.raises(ConfigurationError, match=r'pip install "celery-dlock\[prometheus\]"'):
        sink_named("prometheus")


@pytest.mark.parametrize("path", ["shop.nowhere:count", "celery_dlock.core.events:nothing"])
def test_a_sink_that_is_not_there_is_an_error_with_its_name(path: str) -> None:
    with pytest.raises(ConfigurationError, match=path):
        sink_named(path)
