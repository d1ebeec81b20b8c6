"""What a message is made of does not change while it waits, whatever it is made of."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import states
from celery.security.serialization import register_auth
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from kombu.exceptions import ContentDisallowed

from celery_dlock import LockedTask, Ordered, Queue, lock
from celery_dlock.core.events import Parked, Rescheduled, TooLarge
from celery_dlock.core.state import Claim
from tests.services.desk import Desk, open_desk
from tests.workers.conftest import charging

KEY = "order:42"

POLICIES = [Queue(), Ordered()]


@pytest.fixture(params=POLICIES, ids=["queue", "ordered"])
def policy(request: pytest.FixtureRequest) -> Queue | Ordered:
    policy: Queue | Ordered = request.param
    return policy


def waits(desk: Desk, policy: Queue | Ordered) -> None:
    """Deliver what is there while the key is held; it waits in the store then."""
    if isinstance(policy, Queue):
        desk.deliver()
    assert desk.size() == 0
    assert desk.store.peek(KEY).parked == 1


@pytest.mark.parametrize("compression", ["application/x-gzip", "application/x-bz2"])
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_compressed_message_is_compressed_when_it_is_woken(
    desk: Desk, policy: Queue | Ordered, compression: str, serializer: str
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


def test_a_signed_message_is_signed_when_it_is_woken(
    tmp_path: Path, policy: Queue | Ordered
) -> None:
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
        message.decode()
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

    def make(policy: Queue | Ordered = Queue()) -> LockedTask:  # noqa: B008  # it is frozen
        @desk.locked("order:{order}", name="charge", on_contention=policy)
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
    large = make(Queue(keep=True)).delay("42", "x" * LARGEST)

    desk.deliver()

    assert large.get() == LARGEST
    assert desk.size() == 0


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        pytest.param(Queue(), ("look", False), id="queues"),
        pytest.param(Queue(keep=True), ("queue", True), id="is kept"),
        pytest.param(Ordered(), ("queue", True), id="is ordered"),
    ],
)
def test_it_comes_to_a_free_key_with_its_message_only_where_more_was_promised(
    desk: Desk, make: Callable[..., LockedTask], policy: Queue | Ordered, asked: tuple[str, bool]
) -> None:
    make(policy).delay("42", "x")
    enter, questions = desk.store.enter, list[tuple[str, bool]]()

    def noted(claim: Claim, message: bytes | None = None) -> Any:
        questions.append((claim.wait, message is not None))
        return enter(claim, message)

    desk.patch.setattr(desk.store, "enter", noted)
    desk.deliver()

    assert questions == [asked]


def test_it_is_published_as_usual_where_the_order_is_that_of_publishing(
    desk: Desk, make: Callable[..., LockedTask]
) -> None:
    charge = make(Ordered())
    with lock(KEY, app=desk.app, timeout=0):
        large, small = charge.delay("42", "x" * LARGEST), charge.delay("42", "x")

        assert desk.size() == 1
        assert [event.subject.task_id for event in desk.happened(TooLarge)] == [large.id]
        assert desk.store.peek(KEY).parked == 1

    desk.deliver_all()
    assert (large.get(), small.get()) == (LARGEST, 1)
