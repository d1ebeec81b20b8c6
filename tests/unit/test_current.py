"""The lease that the running code holds: innermost first, and nobody else's."""

from __future__ import annotations

import threading

import pytest

from celery_dlock import current_lease
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.state import Claim
from celery_dlock.errors import ConfigurationError
from celery_dlock.locks.current import held_term, holding


def lease(*keys: str) -> Lease:
    claims = [Claim(key, "t:0:0", "n", 9 * SECOND) for key in keys]
    return Lease(tuple(Term(claim, 0, 1, 0.0, lambda: 0.0) for claim in claims), "strict")


def test_outside_a_body_there_is_none_and_the_error_says_where_it_works() -> None:
    with pytest.raises(ConfigurationError, match="in the body of a locked task"):
        current_lease()
    assert held_term("a") is None
    assert current_lease(default=None) is current_lease(None) is None
    with holding(lease("a")) as held:
        assert current_lease(default=None) is held


def test_it_is_the_innermost_one_and_the_outer_is_back_afterwards() -> None:
    outer, inner = lease("a"), lease("b")
    with holding(outer):
        with holding(inner):
            assert current_lease() is inner
        assert current_lease() is outer


def test_it_is_gone_after_an_error() -> None:
    with pytest.raises(KeyError), holding(lease("a")):
        raise KeyError
    with pytest.raises(ConfigurationError):
        current_lease()


def test_a_key_is_found_in_any_lease_that_is_held() -> None:
    outer, inner = lease("a", "b"), lease("c")
    with holding(outer), holding(inner):
        assert held_term("b") is outer.terms[1]
        assert held_term("c") is inner.terms[0]
        assert held_term("d") is None


def test_the_innermost_term_of_a_key_counts() -> None:
    outer, inner = lease("a"), lease("a", "b")
    with holding(outer), holding(inner):
        assert held_term("a") is inner.terms[0]


def test_a_thread_that_the_body_starts_holds_nothing() -> None:
    found: list[Term | None] = []
    with holding(lease("a")):
        thread = threading.Thread(target=lambda: found.append(held_term("a")))
        thread.start()
        thread.join()
    assert found == [None]


def test_two_threads_hold_what_they_hold() -> None:
    both_hold = threading.Barrier(2, timeout=30)
    found: dict[str, tuple[str, Term | None]] = {}

    def body(mine: str, other: str) -> None:
        with holding(lease(mine)):
            both_hold.wait()
            found[mine] = (current_lease().key, held_term(other))
            both_hold.wait()

    threads = [threading.Thread(target=body, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": ("a", None), "b": ("b", None)}
