"""Which errors say that a broker refuses a message, and which messages fail alone."""

from __future__ import annotations

from random import Random

import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from botocore.exceptions import ClientError, EndpointConnectionError, ParamValidationError
from kombu.exceptions import EncodeError, OperationalError
from sqlalchemy.exc import DataError
from sqlalchemy.exc import OperationalError as DatabaseError

from celery_dlock.messages.refusals import ALONE, Comparison, is_refusal

ORDERS, MAILS = "orders", "mails"
ODD = RuntimeError("nobody knows")


def of_sqs(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}}, "SendMessage")


def as_kombu_raises_it(error: Exception) -> OperationalError:
    """What the transport calls an error of the connection."""
    raised = OperationalError(str(error))
    raised.__cause__ = error
    return raised


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (NotFound("no exchange"), True),
        (PreconditionFailed("too large"), True),
        (EncodeError("no JSON"), True),
        (of_sqs("InvalidParameterValue"), True),
        (of_sqs("InvalidMessageContents"), True),
        (as_kombu_raises_it(ParamValidationError(report="no text")), True),
        (as_kombu_raises_it(DataError("INSERT", {}, Exception("too long"))), True),
        (AccessRefused("to this process"), False),
        (of_sqs("RequestThrottled"), False),
        (of_sqs("AccessDenied"), False),
        (of_sqs("AWS.SimpleQueueService.NonExistentQueue"), False),
        (of_sqs("KmsDisabled"), False),
        (of_sqs("InternalError"), False),
        (ClientError({}, "SendMessage"), False),
        (as_kombu_raises_it(EndpointConnectionError(endpoint_url="there")), False),
        (as_kombu_raises_it(DatabaseError("INSERT", {}, Exception("gone"))), False),
        (as_kombu_raises_it(ConnectionResetError()), False),
        (OperationalError("away"), False),
        (ODD, False),
    ],
    ids=repr,
)
def test_it_is_known_by_the_transport(error: Exception, refused: bool) -> None:
    assert is_refusal(error) is refused


def test_a_message_that_fails_again_and_again_while_others_pass_is_refused() -> None:
    comparison = Comparison()
    for _ in range(ALONE - 1):
        assert not comparison.fails("one", ORDERS, ODD)
        comparison.passes("another", ORDERS)
    assert comparison.fails("one", ORDERS, ODD)


@pytest.mark.parametrize("passes", ["nothing", "elsewhere", "and so does it, late"])
def test_it_is_not_if_it_does_not_fail_alone(passes: str) -> None:
    comparison = Comparison()
    for number in range(5 * ALONE):
        assert not comparison.fails("one", ORDERS, ODD)
        if passes == "elsewhere":
            comparison.passes("another", MAILS)
        if passes == "and so does it, late":
            comparison.passes("another", ORDERS)
            if number % (ALONE - 1) == ALONE - 2:
                comparison.passes("one", ORDERS)


def test_another_error_is_counted_anew() -> None:
    comparison = Comparison()
    for number in range(5 * ALONE):
        error = ODD if number % ALONE else ConnectionResetError()
        assert not comparison.fails("one", ORDERS, error)
        comparison.passes("another", ORDERS)


def test_an_outage_by_chance_dead_letters_nothing() -> None:
    # Given a broker that fails a tenth up to nine tenths of what is published
    for seed in range(200):
        chance, comparison = Random(seed), Comparison()
        failing = chance.uniform(0.1, 0.9)
        # When twenty messages are published again and again until each has passed
        left = set(range(20))
        while left:
            for message in sorted(left):
                if chance.random() > failing:
                    comparison.passes(message, ORDERS)
                    left.discard(message)
                else:
                    assert not comparison.fails(message, ORDERS, ODD)
