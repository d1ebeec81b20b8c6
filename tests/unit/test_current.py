"""The lease that the running code holds: innermost first, and nobody else's."""

from __future__ import annotations

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
