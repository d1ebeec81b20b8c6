"""A commit as etcd's transaction: what has to be so, and what is then done."""

from __future__ import annotations

from collections.abc import Mapping

from celery_dlock.backends import etcd_wire as wire
from celery_dlock.backends.etcd_names import Names
from celery_dlock.backends.rows import Commit, Name

#: What a server takes in one transaction unless ``--max-txn-ops`` says otherwise.
LARGEST = 128


def transaction(names: Names, commit: Commit, held: int, remembered: Mapping[Name, int]) -> bytes:
    """The request for *commit*, whose rows hang on the leases *held* and *remembered*.

    Raises :exc:`ValueError` when it is more than etcd takes at once.
    """
    conditions, changes = _rows(names, commit, held, remembered)
    guard = names.written(commit.name)
    if commit.was is None:
        conditions.append(wire.absent(guard))
    else:
        conditions.append(wire.stands(guard, int(commit.was.stamp)))
    if commit.guard is None:
        if commit.was is not None:
            changes.append(wire.delete(guard))
    elif commit.changes:
        changes.append(wire.put(guard, commit.guard))
    if max(len(conditions), len(changes)) > LARGEST:
        raise ValueError(
            f"a commit of {len(conditions)} conditions and {len(changes)} changes for "
            f"{commit.name.key!r}; etcd takes {LARGEST} of each"
        )
    return b"".join(conditions + changes)


def _rows(
    names: Names, commit: Commit, held: int, remembered: Mapping[Name, int]
) -> tuple[list[bytes], list[bytes]]:
    """Conditions and changes of all rows but the guard."""
    written = names.written
    conditions = [wire.absent(written(name)) for name in commit.absent]
    changes = [wire.put(written(name), value) for name, value in commit.create.items()]
    for name, value in commit.update.items():
        # What has a lease keeps it, and what is gone is not made again.
        changes.append(wire.put(written(name), value, wire.KEEP_LEASE))
    for name in commit.delete:
        key = written(name)
        # Without this a delete that comes late takes what another one has made since.
        conditions.append(wire.there(key))
        changes.append(wire.delete(key))
    if commit.held is not None:
        name, value = commit.held
        key = written(name)
        conditions.append(wire.absent(key))
        changes.append(wire.put(key, value, wire.on_lease(held)))
    for name, (value, _) in commit.remember.items():
        changes.append(wire.put(written(name), value, wire.on_lease(remembered[name])))
    return conditions, changes
