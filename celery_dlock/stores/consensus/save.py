"""Turns what an operation changed in a key into one commit of its rows.

The common case has commits of its own, without the rules: a free key is taken, and released by
its only holder. They are what the rules would come to, and a test compares them; but most of the
time that such an operation takes here, the rules would be looking for what cannot be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from celery_dlock.core.plain import ends_plainly, is_done, is_plain
from celery_dlock.core.state import Claim, Dead, Holder, Mode, Outcome, Step, Waiting
from celery_dlock.core.turns import due
from celery_dlock.stores.change import Change, difference, with_message
from celery_dlock.stores.consensus.load import Loaded
from celery_dlock.stores.consensus.messages import Item, died
from celery_dlock.stores.consensus.record import (
    Gaps,
    Record,
    changed_gaps,
    encode_alone,
    encode_dead,
    encode_page,
    listed_dead,
    page_of,
    remember_lost,
)
from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Row


class Saving:
    """One operation on what was *found* of a key: what it leaves, and whom it wakes.

    With *leased* a holder holds for as long as it has its row; without, until the instants in the
    version row, which is for a clock that is moved by hand. *touched* are the pages that the commit
    writes, which have to be loaded before; *new* is the holder whom this operation grants the key.
    """

    __slots__ = ("_change", "_claim", "_leased", "_loaded", "_step", "new", "touched")

    def __init__(self, claim: Claim, loaded: Loaded, step: Step[object], leased: bool) -> None:
        self._claim = claim
        self._loaded = loaded
        self._step = step
        self._leased = leased
        self._change = difference(loaded.state, step)
        self.touched = self._pages()
        self.new = self._newcomer()

    def _pages(self) -> set[int]:
        came, gone = self._change.came, self._change.gone
        if not came and not gone:
            return set()
        moved = {*gone, *(entry.task for entry in came)}
        old = (entry.rank for entry in self._loaded.state.waiting if entry.task in moved)
        return {page_of(rank) for rank in (*old, *(entry.rank for entry in came))}

    def _newcomer(self) -> Holder | None:
        """It may be one that held the key before, and has lost it."""
        before = {(h.task, h.nonce, h.since) for h in self._loaded.state.holders}
        after = self._step.state.holders
        return next((h for h in after if (h.task, h.nonce, h.since) not in before), None)

    def woken(self) -> list[Name]:
        """The messages that lie in the store and have to be read before."""
        if not self._step.wakes and not self._change.dead:
            return []
        woken = {turn.task for turn in self._step.wakes}
        woken |= {dead.task for dead in self._change.dead}
        stored = woken & with_message(self._loaded.state)
        return [Name(Kind.MESSAGE, self._claim.key, task) for task in sorted(stored)]

    def commit(self, message: bytes | None, woken: Mapping[Name, bytes]) -> Commit:
        """The commit; *message* is the asking task's, and *woken* are those of its wakes."""
        key, change, loaded = self._claim.key, self._change, self._loaded
        record = self._record(change)
        value = None if record.empty else record.encode()
        commit = Commit(_version_row(self._claim), loaded.version_row, value)
        self._holders(commit)
        self._queue(commit, change)
        had = with_message(loaded.state)
        for task in change.parked:
            _put(commit, Name(Kind.MESSAGE, key, task), task in had, message or b"")
            if task not in had:
                commit.create[Item(False, key, task).name] = b""
        for task in change.unparked:
            commit.delete |= {Name(Kind.MESSAGE, key, task), Item(False, key, task).name}
        for dead in change.dead:
            body = message or woken.get(Name(Kind.MESSAGE, key, dead.task), b"")
            letter = Name(Kind.DEAD, key, dead.task)  # only the asking task's own message dies
            _put(commit, letter, loaded.dead is not None, encode_dead(dead, body))
            self._list_dead(commit, dead)
        self._due(commit, record)
        self._done(commit, change)
        return commit

    def _list_dead(self, commit: Commit, dead: Dead) -> None:
        """By its task id, and by when it died; it may be listed already as it died before."""
        key, before = self._claim.key, self._loaded.dead
        if before is None:
            commit.create[Item(True, key, dead.task).name] = b""
            commit.create[died(key, dead)] = b""
            return
        old = died(key, listed_dead(dead.task, before.value)[0])
        if old != died(key, dead):
            commit.create[died(key, dead)] = b""
            commit.delete.add(old)

    def _record(self, change: Change) -> Record:
        after, loaded = self._step.state, self._loaded
        leased = frozenset(h.owner for h in after.holders if self._is_leased(h))
        first, last = self._ends()
        return Record(
            holders=tuple(
                _as_kept(h, loaded.now if h.owner in leased else 0) for h in after.holders
            ),
            leased=leased,
            grants=after.grants,
            parked=after.parked,
            first=first,
            last=last,
            gaps=self._gaps(page_of(first)) if (first, last) != (0, 0) else (),
            lost=remember_lost(loaded.record.lost, change.lost, loaded.now),
            due=self._next_due(),
            paused=after.paused,
            cooling=after.cooling,
            hold=after.hold,
        )

    def _is_leased(self, holder: Holder) -> bool:
        """Whether its row is there, or is made now."""
        if holder is self.new:
            return self._leased
        owner = holder.owner
        return owner in self._loaded.rows and owner in self._loaded.record.leased

    @property
    def outlived(self) -> Name | None:
        """A row that has outlived its lease, by the clock, and is in the way of the next one."""
        if self.new is None or self.new.owner not in self._loaded.rows:
            return None
        return Name(Kind.HOLDER, self._claim.key, self.new.owner)

    def _ends(self) -> tuple[int, int]:
        """Ranks between which all entries of the queue are from now on."""
        unread = self._loaded.unread
        ranks = [entry.rank for entry in self._step.state.waiting]
        if unread is not None:
            ranks = [unread, *ranks]
        elif not ranks:
            return 0, 0
        return min(ranks), max(self._step.state.last, *ranks)

    def _gaps(self, first: int) -> Gaps:
        """Only what this commit empties is new there: that is confirmed as it happens."""
        after = {number: self._page_after(number) for number in self.touched}
        emptied = [n for n, entries in after.items() if not entries and self._loaded.pages[n]]
        filled = [n for n, entries in after.items() if entries]
        return changed_gaps(self._loaded.record.gaps, emptied, filled, first)

    def _page_after(self, number: int) -> list[Waiting]:
        change = self._change
        moved = {*change.gone, *(entry.task for entry in change.came)}
        stays = [entry for entry in self._loaded.pages[number] if entry.task not in moved]
        return [*stays, *(entry for entry in change.came if page_of(entry.rank) == number)]

    def _next_due(self) -> int | None:
        """When to look at the key again.

        Leases begin anew whenever they are seen, and the key is not listed anew for that: a look
        that comes too early is put right by itself.
        """
        listed, at = self._loaded.record.due, due(self._step.state)
        if not self._leased or listed is None or at is None:
            return at
        return listed if self._loaded.now < listed <= at else at

    def _holders(self, commit: Commit) -> None:
        stay = {holder.owner for holder in self._step.state.holders}
        key = self._claim.key
        commit.delete |= {
            Name(Kind.HOLDER, key, owner) for owner in self._loaded.rows.keys() - stay
        }
        if self.new is not None:
            row = Name(Kind.HOLDER, key, self.new.owner)
            if self._leased:
                commit.held, commit.lease = (row, b""), self._claim.ttl
            else:
                commit.create[row] = b""

    def _queue(self, commit: Commit, change: Change) -> None:
        key = self._claim.key
        before = {entry.task: entry for entry in self._loaded.state.waiting}
        came = {entry.task: entry for entry in change.came}
        for number in self.touched:
            page, entries = Name(Kind.PAGE, key, str(number)), self._page_after(number)
            value = encode_page(entries) if entries else None
            _put(commit, page, bool(self._loaded.pages[number]), value)
        for task in change.gone:
            commit.delete.add(Name(Kind.PLACE, key, task))
        for task, entry in came.items():
            if task not in before or before[task].rank != entry.rank:
                place = str(entry.rank).encode()
                _put(commit, Name(Kind.PLACE, key, task), task in before, place)

    def _due(self, commit: Commit, record: Record) -> None:
        listed = self._loaded.record.due
        if listed != record.due:
            if listed is not None:
                commit.delete.add(_due_name(self._claim.key, listed))
            if record.due is not None:
                commit.create[_due_name(self._claim.key, record.due)] = b""

    def _done(self, commit: Commit, change: Change) -> None:
        """What is done is remembered; and nobody else may have said so meanwhile."""
        claim, row = self._claim, self._loaded.done
        done = _done(claim)
        until = str(self._loaded.now + claim.done_ttl).encode()
        if change.done and claim.done_ttl and row is not None:
            commit.update[done] = until
        elif change.done and claim.done_ttl:
            commit.remember[done] = until, claim.done_ttl
        elif change.undone and row is not None:
            commit.delete.add(done)
        elif claim.task and row is None:
            commit.absent.add(done)


def taken_free(claim: Claim, row: Name, now: int) -> Commit | None:
    """What *claim*, whose row is *row*, commits to a key that nobody uses.

    ``None`` unless it is to run at once, and to leave no more.
    """
    if not is_plain(claim):
        return None
    return Commit(
        _version_row(claim),
        None,
        encode_alone(claim, int(claim.mode is not Mode.SHARED), now),
        absent={_done(claim)},
        held=(row, b""),
        lease=claim.ttl,
    )


def left_alone(
    claim: Claim, row: Name, outcome: Outcome, version_row: Row, now: int
) -> Commit | None:
    """What *claim*, alone on its key with *row* and *version_row*, commits if nothing stays."""
    if not ends_plainly(claim, outcome):
        return None
    commit = Commit(_version_row(claim), version_row, None, delete={row})
    if is_done(claim, outcome):
        until = str(now + claim.done_ttl).encode()
        commit.remember = {_done(claim): (until, claim.done_ttl)}
    else:
        commit.absent = {_done(claim)}
    return commit


def _version_row(claim: Claim) -> Name:
    return Name(Kind.VERSION_ROW, claim.key)


def _done(claim: Claim) -> Name:
    return Name(Kind.DONE, claim.key, claim.task)


def _as_kept(holder: Holder, since: int) -> Holder:
    """*holder* with its end counted from *since*; its token is that of its row."""
    return replace(holder, token=int(holder.token != 0), expires=holder.expires - since)


def _due_name(key: str, at: int) -> Name:
    """Under which name *key* is listed as due; it sorts by the instant."""
    return Name(Kind.DUE, key, f"{max(at, 0):016d}")


def _put(commit: Commit, name: Name, exists: bool, value: bytes | None) -> None:
    if value is not None and exists:
        commit.update[name] = value
    elif value is not None:
        commit.create[name] = value
    elif exists:
        commit.delete.add(name)
