"""What a message is made of does not change while it waits, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, states
from celery.security.serialization import register_auth
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from kombu.exceptions import ContentDisallowed

from celery_dlock import LockContended, LockedTask, LockTimeout, Queue, lock
from celery_dlock.core.events import (
    Acquired,
    Contended,
    DeadLettered,
    Event,
    Parked,
    Rescheduled,
    Subject,
    TimedOut,
    TooLarge,
    Woken,
)
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim
from tests.services.desk import Desk, open_desk
from tests.workers.conftest import charging

KEY = "order:42"

ORDERS = ["arrival", "publish"]


@pytest.fixture(params=ORDERS)
def policy(request: pytest.FixtureRequest) -> Queue:
    return Queue(ordered=request.param)


def waits(desk: Desk, policy: Queue) -> None:
    """Deliver what is there while the key is held; it waits in the store then."""
    if policy.ordered == "arrival":
        desk.deliver()
    assert desk.size() == 0
    assert desk.store.peek(KEY).parked == 1


@pytest.mark.parametrize("compression", ["application/x-gzip", "application/x-bz2"])
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_compressed_message_is_compressed_when_it_is_woken(
    desk: Desk, policy: Queue, compression: str, serializer: str
) -> None:
    desk.app.conf.accept_content = ["json", "pickle"]

    @desk.locked("order:{order}", name="charge", on_contention=policy)
    def charge(order: str, text: str) -> int:
        return len(text)

    with lock(KEY, app=desk.app, timeout=0):
        result = charge.apply_async(
            ("42", "x" * 9000), compression=compression, serializer=serializer
        )
        waits(desk, policy)

    (raw,) = (raw for name in desk.channel.queues for raw in desk.channel.queues[name].queue)
    assert raw["headers"]["compression"] == compression
    desk.deliver()
    assert result.get() == 9000


def test_a_signed_message_is_signed_when_it_is_woken(tmp_path: Path, policy: Queue) -> None:
    key, certificate = _signer(tmp_path)
    # As setup_security() does it, which would also disable the other serializers for all tests.
    register_auth(key.read_text(), None, certificate.read_text(), str(tmp_path / "*.pem"))
    signed = {"task_serializer": "auth", "accept_content": ["auth"]}
    with open_desk(**signed, result_accept_content=["json"]) as desk:
        charge = charging(desk, on_contention=policy)
        with lock(KEY, app=desk.app, timeout=0):
            result = charge.delay("42")
            waits(desk, policy)
        message = desk.deliver()

        assert message.content_type == "application/data"
        assert result.get() == "42"


def test_what_may_not_be_read_is_not_read_because_it_waited(desk: Desk) -> None:
    # Given a message that waits, And workers that no longer accept what it is written in
    desk.app.conf.accept_content = ["json", "pickle"]

    charge = charging(desk, on_contention="queue")
    with lock(KEY, app=desk.app, timeout=0):
        result = charge.apply_async(("42",), serializer="pickle")
        desk.deliver()
    desk.app.conf.accept_content = ["json"]
    message = desk.receive()

    with pytest.raises(ContentDisallowed):
        message.decode()  # type: ignore[no-untyped-call]
    assert result.state == states.PENDING


def _signer(folder: Path) -> tuple[Path, Path]:
    """A private key and its certificate, as files."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key_file, certificate_file = folder / "key", folder / "certificate.pem"
    key_file.write_bytes(key.private_bytes(encoding, private, serialization.NoEncryption()))
    certificate_file.write_bytes(certificate.public_bytes(encoding))
    return key_file, certificate_file


# A message that is too large for the store waits in the broker instead.


LARGEST = 4000


@pytest.fixture
def make(desk: Desk) -> Callable[..., LockedTask]:
    desk.patch.setattr(type(desk.store), "largest_message", LARGEST)

    def make(**options: Any) -> LockedTask:
        @desk.locked("order:{order}", name="charge", on_contention=Queue(**options))
        def charge(order: str, text: str) -> int:
            return len(text)

        return charge

    return make


def test_it_is_rescheduled_and_told(desk: Desk, make: Callable[..., LockedTask]) -> None:
    # Given a large message and a small one, And the key is taken
    charge = make()
    large, small = charge.delay("42", "x" * LARGEST), charge.delay("42", "x")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

        assert [event.subject.task_id for event in desk.happened(Parked)] == [small.id]
        assert [event.subject.task_id for event in desk.happened(Rescheduled)] == [large.id]
        (told,) = desk.happened(TooLarge)
        assert (told.subject.task_id, told.size > LARGEST) == (large.id, True)
        assert desk.store.peek(KEY).parked == 1

    # And both run
    desk.deliver_all()
    assert (large.get(), small.get()) == (LARGEST, 1)


def test_it_runs_at_once_where_the_key_is_free(desk: Desk, make: Callable[..., LockedTask]) -> None:
    large = make(keep=True).delay("42", "x" * LARGEST)

    desk.deliver()

    assert large.get() == LARGEST
    assert desk.size() == 0


def test_it_is_published_as_usual_where_the_order_is_that_of_publishing(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    charge = make(ordered="publish")
    with lock(KEY, app=desk.app, timeout=0):
        large, small = charge.delay("42", "x" * LARGEST), charge.delay("42", "x")

        assert desk.size() == 1
        assert [event.subject.task_id for event in desk.happened(TooLarge)] == [large.id]
        assert desk.store.peek(KEY).parked == 1

    desk.deliver_all()
    assert (large.get(), small.get()) == (LARGEST, 1)


# What sinks are told: templates and never keys, the waits, and what the message has carried.


class Trace:
    """A sink that is made for its app, and counts how often a message was given to it."""

    made: list[tuple[Any, Trace]]

    def __init__(self) -> None:
        self.events: list[Event] = []

    @classmethod
    def from_app(cls, app: Celery) -> Trace:
        sink = cls()
        cls.made.append((app, sink))
        return sink

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def carry(self, subject: Subject) -> dict[str, str]:
        return {"hops": subject.carried.get("hops", "") + "."}


@pytest.fixture
def desk() -> Iterator[Desk]:
    Trace.made = []
    with open_desk(dlock_sinks=[Trace]) as made:
        yield made


def told(kind: type[Event]) -> list[Any]:
    """The events of one kind that the only sink has heard."""
    ((_, sink),) = Trace.made
    return [event for event in sink.events if isinstance(event, kind)]


def test_a_sink_that_wants_to_know_its_app_is_made_once_for_it(desk: Desk) -> None:
    charge = charging(desk)
    charge.delay(1)
    charge.delay(2)
    desk.deliver_all()
    ((app, _),) = Trace.made
    assert app is desk.app
    assert len(told(Acquired)) == 2


def test_a_rescheduled_message_carries_it_over_each_attempt(desk: Desk) -> None:
    charge = charging(desk)
    with lock("order:1", app=desk.app):
        charge.delay(1)
        for _ in range(3):
            desk.deliver()
    desk.deliver()

    assert len(told(Rescheduled)) == 3
    hops = [e.subject.carried.get("hops") for e in told(Contended) if e.subject.label != "lock()"]
    assert hops == [None, ".", ".."]
    acquired = told(Acquired)[-1]
    assert acquired.subject.carried == {"hops": "..."}
    assert acquired.waited > 0
    assert acquired.since_woken is None


def test_a_parked_message_carries_it_through_the_store(desk: Desk) -> None:
    charge = charging(desk, on_contention="queue")
    with lock("order:1", app=desk.app):
        charge.delay(1)
        desk.deliver()
        (parked,) = told(Parked)
        assert parked.refused
    desk.deliver()

    (woken,) = told(Woken)
    assert woken.subject.carried == {"hops": "."}
    acquired = told(Acquired)[-1]
    assert acquired.subject.carried == {"hops": "."}
    assert acquired.waited >= acquired.since_woken >= 0
    ((_, sink),) = Trace.made  # and never a key
    assert {event.subject.label for event in sink.events} == {"order:{order}", "lock()"}


def test_who_takes_its_place_as_it_is_published_was_not_refused(desk: Desk) -> None:
    charge = charging(desk, on_contention=Queue(ordered="publish"))
    charge.delay(1)
    desk.deliver()

    (parked,) = told(Parked)
    assert not parked.refused
    acquired = told(Acquired)[-1]
    assert acquired.subject.carried == {"hops": "."}


def test_a_task_that_is_unknown_here_has_no_label(desk: Desk) -> None:
    charge = charging(desk, on_contention="queue")
    with lock("order:1", app=desk.app):
        charge.delay(1)
        desk.deliver()
        del desk.app.tasks["charge"]
    assert {event.subject.label for event in told(Woken) + told(DeadLettered)} == {""}


def test_a_lock_that_is_not_to_be_had_is_told_like_a_task(desk: Desk) -> None:
    desk.store.enter(Claim("order:1", "other:0:0", "nonce", ttl=60 * SECOND))

    with pytest.raises(LockContended), lock("order:1", app=desk.app, timeout=0):
        pass
    with pytest.raises(LockTimeout), lock("order:1", app=desk.app, timeout=0.01):
        pass

    refused = told(Contended)
    assert [(event.key, event.holder) for event in refused] == [("order:1", "other")] * 2
    (late,) = told(TimedOut)
    assert late.waited >= 0.01
