"""Options of other libraries' locks, and what to write here instead.

Celery takes any name for an attribute of the project's own, so a task that was moved here with its
options as they were would have a lock, and none of what they say.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from celery_dlock.errors import ConfigurationError

#: What becomes of a duplicate call.
_IS_DUPLICATE = "{p}unique=Unique(), and raise an error of yours where result.is_duplicate is true"

#: Options for how a key is held, which the key itself says: what to write instead. ``{p}`` stands
#: for the prefix of options.
HELD = {
    **dict.fromkeys(
        ("limit", "max_concurrent", "max_concurrency", "concurrency", "semaphore", "slots"),
        '{p}key=Limit("mail", 3)',
    ),
    **dict.fromkeys(("shared", "read", "read_only"), '{p}key=Shared("catalog")'),
    **dict.fromkeys(("cooldown", "throttle"), '{p}key=Limit("mail", 1, cooldown=60)'),
}

#: The words of :class:`~celery_dlock.Limit` and :class:`~celery_dlock.Shared`, which may be
#: misspelt like an option.
WORDS = ("limit", "shared", "cooldown")

#: An option's library and what to write instead.
FOREIGN = {
    "once": ("celery-once", '{p}unique="done", or Unique(by="{{order_id}}") for its keys'),
    "unique_on": ("celery-singleton", '{p}unique=Unique(by="{{order_id}}")'),
    "raise_on_duplicate": ("celery-singleton", _IS_DUPLICATE),
    "on_duplicate": ("other locks", _IS_DUPLICATE),
    "lock_expiry": (
        "celery-singleton",
        "{p}ttl= for the length of the lease; a unique claim ends with its task",
    ),
    "heimdall": (
        "celery-heimdall",
        '{p}unique=, and {p}key=Limit("mail", 100, cooldown=60) for a rate',
    ),
    "timeout": (
        "other locks",
        "max_wait= of a policy, as in {p}on_contention=Queue(max_wait=60), for how long to wait, "
        "and {p}ttl= for the length of the lease",
    ),
    "max_hold": (
        "the settings, as dlock_max_hold for lock() blocks",
        "Celery's time_limit=, which ends a body that hangs",
    ),
    "lock_timeout": ("other locks", "{p}ttl= for the length of the lease"),
    "expire": ("other locks", "{p}ttl= for the length of the lease"),
    "blocking": ("other locks", '{p}on_contention=, as "wait", "queue", "skip" or "fail"'),
    "blocking_timeout": ("other locks", "{p}on_contention=Wait(timeout=60)"),
    **{option: ("other locks", instead) for option, instead in HELD.items()},
}

#: The same for ``lock()``: its options are others than those of a task.
FOREIGN_TO_BLOCKS = {
    **dict.fromkeys(
        ("expire", "lock_timeout", "lock_expiry", "auto_release_time"),
        ("other locks", "ttl= for the length of the lease, which is renewed while the block runs"),
    ),
    **dict.fromkeys(
        ("blocking_timeout", "context_manager_timeout"),
        ("other locks", "timeout= for how long to wait"),
    ),
    "blocking": ("other locks", "timeout=0, which asks once and does not wait"),
    "on_contention": ("tasks", "timeout= for how long to wait, or 0 to ask once"),
    "on_lost": ("tasks", "lease.check() in the block, or look at lease.lost"),
    "max_wait": ("policies", "timeout= for how long to wait"),
    "max_hold": ("the settings", "dlock_max_hold there, for all blocks"),
    **{option: ("other locks", instead) for option, instead in HELD.items()},
}


def refuse_foreign(
    subject: str,
    names: Iterable[str],
    prefix: str = "",
    libraries: Container[str] = (),
    foreign: Mapping[str, tuple[str, str]] = FOREIGN,
) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` about *subject* if one of *names* is an option
    of a library other than those of the task's base classes.
    """
    for name in names:
        library, hint = foreign.get(name) or foreign.get(name.removeprefix(prefix), ("", ""))
        if library and library not in libraries:
            raise ConfigurationError(
                f"{subject}: {name}= is an option of {library}; write {hint.format(p=prefix)}"
            )
