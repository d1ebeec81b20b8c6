"""What is written by hand is what protobuf would have written."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.backends import etcd_wire as wire
from celery_dlock.backends.etcd_protobuf import import_etcdrpc

rpc: Any = import_etcdrpc()

KEYS = st.binary(max_size=300) | st.builds(bytes, st.integers(100, 20_000))
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20_000)


def read(*parts: bytes) -> Any:
    return rpc.TxnRequest.FromString(b"".join(parts))


@given(KEYS, NUMBERS)
def test_conditions_are_compared_by_creation_or_by_change(key: bytes, number: int) -> None:
    by = rpc.Compare
    assert list(
        read(
            wire.absent(key), wire.there(key), wire.born(key, number), wire.stands(key, number)
        ).compare
    ) == [
        by(key=key, target=by.CREATE, result=by.EQUAL, create_revision=0),
        by(key=key, target=by.CREATE, result=by.GREATER, create_revision=0),
        by(key=key, target=by.CREATE, result=by.EQUAL, create_revision=number),
        by(key=key, target=by.MOD, result=by.EQUAL, mod_revision=number),
    ]


@given(KEYS, KEYS, NUMBERS)
def test_changes_and_looks_are_done_in_their_order(key: bytes, value: bytes, lease: int) -> None:
    request = read(
        wire.put(key, value),
        wire.put(key, value, wire.on_lease(lease)),
        wire.put(key, value, wire.KEEP_LEASE),
        wire.put(key, b"", wire.on_lease(lease) + wire.KEEP_VALUE),
        wire.delete(key),
        wire.look(key, keys_only=True),
        wire.look(key, keys_only=False),
    )

    put, op = rpc.PutRequest, rpc.RequestOp
    assert list(request.success) == [
        op(request_put=put(key=key, value=value)),
        op(request_put=put(key=key, value=value, lease=lease)),
        op(request_put=put(key=key, value=value, ignore_lease=True)),
        op(request_put=put(key=key, lease=lease, ignore_value=True)),
        op(request_delete_range=rpc.DeleteRangeRequest(key=key)),
        op(request_range=rpc.RangeRequest(key=key, keys_only=True)),
        op(request_range=rpc.RangeRequest(key=key)),
    ]
    assert not request.compare
    assert not request.failure


@given(KEYS, KEYS)
def test_a_transaction_is_the_parts_in_a_row(key: bytes, other: bytes) -> None:
    mixed = read(wire.absent(key), wire.delete(key), wire.there(other), wire.put(other, b""))

    assert [compare.key for compare in mixed.compare] == [key, other]
    assert [change.WhichOneof("request") for change in mixed.success] == [
        "request_delete_range",
        "request_put",
    ]
