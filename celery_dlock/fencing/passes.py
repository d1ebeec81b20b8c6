"""What a writer shows at the fence: for each resource its token, and who was given it."""

from __future__ import annotations

from dataclasses import dataclass

from celery_dlock.core.current import current_lease
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.statements import LONGEST

LARGEST_TOKEN = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Pass:
    """What a writer shows at the fence. Raises :exc:`ConfigurationError` when it is malformed."""

    resource: str
    token: int
    owner: str

    def __post_init__(self) -> None:
        require_text("resource", self.resource)
        require_text("owner", self.owner)
        token: object = self.token
        if isinstance(token, bool) or not isinstance(token, int):
            raise ConfigurationError(f"a fencing token is an int, not {token!r}")
        if not 1 <= token <= LARGEST_TOKEN:
            raise ConfigurationError(f"a fencing token is between 1 and 2**63 - 1, not {token}")


def shown(
    lease: Lease | None, resource: str | None, fencing_token: int | None, owner: str | None
) -> tuple[Pass, ...]:
    """Those of *lease*, by default the innermost current one, or the one that the rest makes."""
    given = (resource, fencing_token, owner)
    if given == (None, None, None):
        return passes_of(current_lease() if lease is None else lease)
    if lease is None and resource is not None and fencing_token is not None and owner is not None:
        return (Pass(resource, fencing_token, owner),)
    raise ConfigurationError(
        "the fence is shown a lease, or all of resource, fencing_token and owner"
    )


def passes_of(lease: Lease) -> tuple[Pass, ...]:
    """One for every key that *lease* holds exclusively."""
    held = [term for term in lease.own if term.claim.mode is Mode.EXCLUSIVE]
    if not held:
        raise ConfigurationError(
            f"a read lock has no fencing token: {', '.join(lease.keys)} cannot be fenced"
        )
    return tuple(Pass(term.resource, term.token, term.claim.owner) for term in held)


def require_own_name(resource: str, lease: Lease) -> None:
    """Raise :exc:`ConfigurationError` if *resource* has tokens already, which are the store's."""
    require_text("resource", resource)
    if resource in (mine.resource for mine in passes_of(lease)):
        raise ConfigurationError(
            f"{resource!r} is fenced with the tokens of its lock, which are other numbers: mint "
            f"under a name of its own, such as 'minted:{resource}'"
        )


def require_text(name: str, value: object) -> None:
    """Raise :exc:`ConfigurationError` for what no store of a fence could keep."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} is a text that is not empty, not {value!r}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{name} is a text that UTF-8 can express, not {value!r}"
        ) from None
    if size > LONGEST or "\0" in value:
        raise ConfigurationError(
            f"{name} has up to {LONGEST} bytes, none of them zero: {value[:40]!r}… has {size}"
        )
