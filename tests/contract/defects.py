"""Stores with one defect each, most taken from the field: what one of their methods does instead.

One for each class of the contract, and for the promises whose tests are a part of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any
from unittest import mock

from celery_dlock.core.operations import (
    DeadLetter,
    Discard,
    Enter,
    Leave,
    Operation,
    PutOnHold,
    Renew,
    Replay,
)
from celery_dlock.core.state import (
    Claim,
    Drop,
    Grant,
    KeyState,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Reason,
    Run,
    Same,
    WaitMode,
)
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.stores.base import BackendOptions, KeyPage, LockBackend, Reply, wall_clock
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing.contract.words import DEADLINE
from tests.contract.storage.noting import TURNS, WRITERS


@dataclass(frozen=True)
class Defect:
    """*instead* gets the sound method first, and then the store and what that is called with."""

    #: The test of the contract that fails on it; others may, too.
    seen_by: str
    method: str
    instead: Callable[..., Any]
    store: type[LockBackend] = MemoryBackend

    @contextmanager
    def planted(self) -> Iterator[None]:
        sound = getattr(self.store, self.method)

        @wraps(sound)
        def spoilt(*args: Any, **kwargs: Any) -> Any:
            return self.instead(sound, *args, **kwargs)

        with mock.patch.object(self.store, self.method, spoilt):
            yield


def claims(seen_by: str, change: Callable[[Claim], Claim]) -> Defect:
    """Each claim is taken for another one."""

    def apply(sound: Any, store: Any, operation: Any) -> Any:
        if isinstance(operation, (Enter, Leave, Renew)):
            operation = replace(operation, claim=change(operation.claim))
        return sound(store, operation)

    return Defect(seen_by, "_apply", apply)


def answers(seen_by: str, kind: type, change: Callable[[Reply[Any], Any], Reply[Any]]) -> Defect:
    """Operations of that *kind* are answered otherwise."""

    def apply(sound: Any, store: Any, operation: Any) -> Any:
        reply = sound(store, operation)
        return change(reply, operation) if isinstance(operation, kind) else reply

    return Defect(seen_by, "_apply", apply)


def states(seen_by: str, change: Callable[[KeyState, Operation[object], int], KeyState]) -> Defect:
    """The state of a key is read in another way than it was written; it ends with the instant."""
    return Defect(
        seen_by, "_load", lambda load, store, op, now: change(load(store, op, now), op, now)
    )


def turns(seen_by: str, change: Callable[[Grant], Grant]) -> Defect:
    return states(
        seen_by,
        lambda state, op, now: replace(state, grants=tuple(map(change, state.grants))),
    )


def after(seen_by: str, method: str, change: Callable[..., object]) -> Defect:
    """When the *method* is through, *change* spoils what it has left in the store."""

    def instead(sound: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
        result = sound(store, *args, **kwargs)
        change(store, result, *args, **kwargs)
        return result

    return Defect(seen_by, method, instead)


def results(seen_by: str, method: str, change: Callable[..., Any]) -> Defect:
    """What the *method* returns is another thing; *change* gets that, the store and what it got."""

    def instead(sound: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
        return change(sound(store, *args, **kwargs), store, *args)

    return Defect(seen_by, method, instead)


def state_of(store: Any, key: str) -> KeyState:
    found = store._keys.get(key)
    return found.state if found else KeyState()


def put(store: Any, key: str, **changes: Any) -> None:
    """Change the state of *key*, if there is one."""
    if found := store._keys.get(key):
        found.state = replace(found.state, **changes)


def of_the_holder(store: Any, claim: Claim) -> Claim:
    """*claim* as if it came from whoever holds the key."""
    for holder in state_of(store, claim.key).holders[:1]:
        return replace(claim, task=holder.task, nonce=holder.nonce)
    return claim


def without_writers(state: Any, operation: Any, now: int) -> Any:
    readers = tuple(holder for holder in state.holders if holder.mode is Mode.SHARED)
    return replace(state, holders=readers) if operation.claim.mode is Mode.SHARED else state


def drops_the_only_other_copy(enter: Any, store: Any, claim: Claim, *rest: Any) -> Any:
    for holder in state_of(store, claim.key).holders:
        if holder.task == claim.task and holder.nonce != claim.nonce:
            return Reply(Drop(Reason.WAITING))
    return enter(store, claim, *rest)


def frees_the_successor(leave: Any, store: Any, claim: Claim, *rest: Any) -> Any:
    reply = leave(store, claim, *rest)
    if isinstance(reply.verdict, NotHeld) and rest[0] is not Outcome.REPEAT:
        leave(store, of_the_holder(store, claim), *rest)
    return reply


def with_token(value: Any) -> Any:
    """Issue the next token from another source."""

    def enter(sound: Any, store: Any, *args: Any) -> Any:
        store._token = value(store)
        return sound(store, *args)

    return enter


def forgets_the_token(store: Any, result: None, key: str) -> None:
    if not store._keys:
        store._token = 0


def renews_tokens(store: Any, result: Any, renewed: Any) -> None:
    for claim in renewed:
        held = state_of(store, claim.key).holders
        put(store, claim.key, holders=tuple(replace(h, token=store._token) for h in held))


def comes_back(renew: Any, store: Any, renewed: Any) -> Any:
    for claim in renewed:
        held = state_of(store, claim.key).holders
        put(store, claim.key, holders=tuple(replace(h, expires=store._now() + 1) for h in held))
    return renew(store, renewed)


def reads_before_it_locks(enter: Any, store: Any, claim: Claim, message: Any = None) -> Any:
    operation = Enter(claim, message)
    with store._mutex:
        now, state = store._now(), store._load(operation, store._now())
        store._token += 1
        token = store._token
    time.sleep(0.001)  # as long as a round trip takes
    with store._mutex:
        return store._commit(operation, state, operation.apply(state, now, token), now)


def wakes_two(reply: Reply[Any], operation: Any) -> Reply[Any]:
    doubled = (*reply.wakes, *(replace(wake, task=f"{wake.task}+") for wake in reply.wakes))
    return replace(reply, wakes=doubled)


def sweeps_twice(sweep: Any, store: Any, *args: Any) -> Any:
    with store._mutex:
        before = {key: found.state for key, found in store._keys.items()}
    swept = sweep(store, *args)
    for wake in swept.wakes:
        store._keys[wake.key].state = before[wake.key]
    return swept


def by_instant(keys: Any, store: Any, cursor: str = "", limit: int = 100, **how: Any) -> Any:
    """In the order in which keys are due, which changes while the list is read."""
    if not how.get("waiting"):
        return keys(store, cursor, limit)
    dues = [(at, key) for at, key in store._dues() if f"{at:016d}{key}" > cursor]
    told = tuple(key for _, key in dues[:limit])
    at, key = dues[len(told) - 1] if told else (0, "")
    return KeyPage(told, f"{at:016d}{key}" if len(dues) > limit else None)


def checks_and_writes(note: Any, store: Any, key: str, token: int, texts: Any) -> Any:
    """The first of many writers is slow between the two."""
    nobody_yet, others = vars(store).setdefault(
        "slow", (threading.Semaphore(1), threading.Semaphore(0))
    )
    if not nobody_yet.acquire(blocking=False):
        accepted = note(store, key, token, texts)
        others.release()
        return accepted
    for _ in range((WRITERS - 1) * TURNS):
        others.acquire(timeout=DEADLINE)
    store._notes[key].texts.update(texts)
    return True


def looks_and_puts(swap: Any, store: Any, name: str, was: Any, becomes: Any, stays: int) -> Any:
    stands, _ = store._swapped.get(name, (None, 0))
    if stands != was:
        return stands
    time.sleep(0.001)  # in which another one does the same
    store._swapped[name] = becomes or b"", store._now() + stays
    return becomes


def renews_without_a_lock(renew: Any, store: Any, renewed: Any) -> Any:
    """What others write between its read and its write is overwritten."""
    verdicts = []
    for operation in map(Renew, renewed):
        with store._mutex:
            now, state = store._now(), store._load(operation, store._now())
        time.sleep(0.001)
        with store._mutex:
            step = operation.apply(state, now, 0)
            verdicts.append(store._commit(operation, state, step, now).verdict)
    return verdicts


def seconds() -> int:
    return int(time.time())


def counts_seconds(store: Any, result: None, options: BackendOptions) -> None:
    store._now = options.clock or seconds


def swaps_by_seconds(swap: Any, store: Any, *args: Any) -> Any:
    clock = seconds if store._now is wall_clock else store._now
    with mock.patch.object(store, "_now", clock):
        return swap(store, *args)


def keeps_notes_in_mind(sound: Any, store: Any, key: str) -> Any:
    known = vars(store).setdefault("known", {})
    if key not in known:
        known[key] = sound(store, key)
    return known[key]


#: What a store decides: who gets a key, who waits, what ends, what runs again.
IN_RULES = {
    "frees whoever holds": Defect(
        "test_readers_hold_the_key_together_and_each_leaves_for_itself",
        "leave",
        lambda leave, store, claim, *rest: leave(store, of_the_holder(store, claim), *rest),
    ),
    "lets readers join a writer": states(
        "test_a_writer_waits_for_the_last_reader_and_a_reader_for_the_writer", without_writers
    ),
    "forgets what cools down": states(
        "test_a_slot_that_is_left_early_opens_when_it_has_cooled_down",
        lambda state, op, now: replace(state, cooling=()),
    ),
    "ends whatever hold": Defect(
        "test_only_the_hold_that_was_shown_is_replaced_or_ended",
        "apply",
        lambda apply, store, op: apply(
            store,
            replace(op, was=getattr(state_of(store, op.key).hold, "name", ""))
            if isinstance(op, PutOnHold)
            else op,
        ),
    ),
    "forgets who is to stop": states(
        "test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer",
        lambda state, op, now: replace(
            state, holders=tuple(replace(h, replaced_by=None) for h in state.holders)
        ),
    ),
    "reserves for who never comes": turns(
        "test_the_next_is_woken_when_a_turn_keeps_the_key_no_longer",
        lambda turn: replace(turn, ordered=True),
    ),
    "reserves for strangers for ever": turns(
        "test_a_message_of_another_broker_keeps_the_key_for_half_a_minute_or_so",
        lambda turn: replace(turn, handed_back=turn.handed_back and turn.due),
    ),
    "forgets pauses": after(
        "test_patience_ends_later_by_the_pause",
        "_commit",
        lambda store, reply, op, *_: put(store, op.claim.key, paused=0),
    ),
    "never wakes again": Defect(
        "test_a_wake_that_nobody_answers_is_repeated_at_growing_distance_for_ever",
        "reap",
        lambda reap, store, key: Reply(None) if state_of(store, key).grants else reap(store, key),
    ),
    "lets newcomers overtake a wake": states(
        "test_a_wake_reserves_the_key_against_newcomers",
        lambda state, op, now: replace(
            state, grants=tuple(turn for turn in state.grants if turn.task == op.claim.task)
        ),
    ),
    "wakes nobody when it refuses": answers(
        "test_a_newcomer_does_not_overtake_who_waits",
        Enter,
        lambda reply, op: replace(reply, wakes=()),
    ),
    "forgets the message at run": claims(
        "test_a_kept_message_is_woken_first_when_its_task_has_to_run_again[abandoned]",
        lambda claim: replace(claim, keep=False),
    ),
    "reserves nothing": claims(
        "test_a_reserved_key_is_nobody_elses", lambda claim: replace(claim, successor="")
    ),
    "loses the message of who comes first": claims(
        "test_a_place_is_kept_before_messages_that_came_later",
        lambda claim: replace(claim, wait=WaitMode.NOT) if claim.wait is WaitMode.PLACE else claim,
    ),
    "forgets what is done": Defect(
        "test_a_duplicate_of_a_finished_task_is_dropped",
        "leave",
        lambda leave, store, claim, outcome, message=None: leave(store, claim, Outcome.OVER),
    ),
    "believes whoever asks again": answers(
        "test_a_finished_task_whose_lock_is_another_s_is_told_so_although_it_asks_again",
        Leave,
        lambda reply, op: (
            replace(reply, verdict=Left(reply.verdict.carried)) if op.claim.again else reply
        ),
    ),
    "runs what is published": claims(
        "test_a_published_message_is_woken_at_once_on_a_free_key",
        lambda claim: replace(claim, wait=WaitMode.QUEUE) if claim.enqueues else claim,
    ),
    "drops the only other copy": Defect(
        "test_a_shadow_is_woken_first_when_the_lease_has_ended",
        "enter",
        drops_the_only_other_copy,
    ),
    "takes a redelivery for the owner": answers(
        "test_another_delivery_of_a_running_task_is_the_same",
        Enter,
        lambda reply, op: (
            Reply(Run(0, reply.verdict.holder.token)) if isinstance(reply.verdict, Same) else reply
        ),
    ),
    "never puts off": Defect(
        "test_a_newer_one_takes_its_place_and_puts_it_off",
        "postpone",
        lambda postpone, store, claim, message, delay, most: postpone(
            store, claim, message, delay, delay
        ),
    ),
    "drops whoever is the oldest": claims(
        "test_nobody_makes_room_for_another_task[{}]",
        lambda claim: replace(claim, name=""),
    ),
    "does not revoke who was woken": Defect(
        "test_revoking_twice_wakes_once",
        "cancel",
        lambda cancel, store, key, task: (
            Reply(False)
            if task in [turn.task for turn in state_of(store, key).grants]
            else cancel(store, key, task)
        ),
    ),
    "dead-letters at the first wake": states(
        "test_a_message_is_dead_lettered_after_so_many_wakes_and_the_next_is_woken",
        lambda state, op, now: (
            replace(state, grants=tuple(replace(g, woken=WAKES_BEFORE_DEAD) for g in state.grants))
            if isinstance(op, DeadLetter)
            else state
        ),
    ),
    "replays what has run": states(
        "test_a_dead_message_whose_task_has_run_by_a_copy_is_forgotten",
        lambda state, op, now: (
            replace(state, done=frozenset()) if isinstance(op, Replay) else state
        ),
    ),
    "discards and lets a copy run": Defect(
        "test_a_discarded_message_is_gone_and_its_task_counts_as_done",
        "apply",
        lambda apply, store, op: apply(
            store, replace(op, done_ttl=0) if isinstance(op, Discard) else op
        ),
    ),
}

#: What a store keeps by itself: tokens, leases, names, lists, notes and claims.
IN_STORAGE = {
    "frees the successor on a late release": Defect(
        "test_a_holder_that_wakes_too_late_does_not_free_its_successor",
        "leave",
        frees_the_successor,
    ),
    "gives the same token to all": Defect(
        "test_a_hundred_grants_within_one_instant_grow_strictly", "enter", with_token(lambda _: 6)
    ),
    "takes the token from the clock": Defect(
        "test_a_token_grows_when_the_clock_has_stepped_back",
        "enter",
        with_token(lambda store: store._now() // 1_000),
    ),
    "forgets the token of an idle key": after(
        "test_a_token_grows_after_the_key_was_idle_for_a_month", "_tidy", forgets_the_token
    ),
    "reads the token again at renewal": after(
        "test_a_token_stays_the_same_over_a_renewal", "renew", renews_tokens
    ),
    "renews after the end": Defect(
        "test_a_renewal_after_the_end_is_lost_even_if_nobody_took_the_key", "renew", comes_back
    ),
    "holds without an end": claims(
        "test_a_renewal_moves_the_end_to_a_full_ttl_from_now",
        lambda claim: replace(claim, ttl=1_000 * claim.ttl),
    ),
    "reads before it locks": Defect(
        "test_forty_threads_lose_no_update_of_an_unlocked_counter", "enter", reads_before_it_locks
    ),
    "wakes two": answers(
        "test_the_queue_wakes_first_come_first_woken_and_one_at_a_time", object, wakes_two
    ),
    "takes the message for text": Defect(
        "test_the_queue_returns_a_message_byte_by_byte",
        "enter",
        lambda enter, store, claim, message=None: enter(
            store, claim, (message or b"").decode(errors="replace").encode()
        ),
    ),
    "sweeps twice at once": Defect(
        "test_several_that_sweep_at_once_wake_each_task_once", "sweep", sweeps_twice
    ),
    "finds ids by their beginning": Defect(
        "test_a_waiting_message_is_found_by_its_task_id_and_no_other_is",
        "parked",
        lambda parked, store, ids: [
            (key, task)
            for key, found in store._keys.items()
            for task in found.messages
            if task.startswith(tuple(ids))
        ],
    ),
    "forgets the dead after a day": results(
        "test_the_dead_tell_all_that_was_known_of_them_and_stay",
        "dead",
        lambda dead, store, *_: [b for b in dead if b.dead.at + 86_400_000_000 > store._now()],
    ),
    "lists those who wait by when they are due": Defect(
        "test_a_key_in_use_is_told_whatever_comes_and_goes_between_the_pages[True]",
        "keys",
        by_instant,
    ),
    "reaps what it looks at": after(
        "test_to_list_and_to_look_changes_nothing",
        "look",
        lambda store, states, keys: [store.reap(key) for key in keys] and None,
    ),
    "folds the case of keys": claims(
        "test_keys_of_odd_characters_do_not_meet",
        lambda claim: replace(claim, key=claim.key.lower()),
    ),
    "checks first and writes then": Defect(
        "test_of_many_writers_at_once_what_the_largest_token_wrote_stands",
        "note",
        checks_and_writes,
    ),
    "keeps its notes to itself": Defect(
        "test_notes_are_seen_by_others_at_once_and_outlast_the_connection",
        "notes",
        keeps_notes_in_mind,
        SqliteBackend,
    ),
}

#: What a store of anybody's can get wrong: the contract in the package has to find it by itself.
IN_PACKAGE = {
    "looks and then puts": Defect(
        "test_of_those_who_try_at_once_one_gets_through", "swap", looks_and_puts
    ),
    "renews without a lock": Defect(
        "test_a_renewal_undoes_nothing_that_others_write_at_once", "renew", renews_without_a_lock
    ),
    "counts seconds": after("test_its_own_clock_counts_microseconds", "__init__", counts_seconds),
    "swaps by a clock of seconds": Defect(
        "test_its_own_clock_counts_microseconds", "swap", swaps_by_seconds
    ),
    "keeps the first of the postponed": Defect(
        "test_the_newest_postponed_message_is_due_after_its_delay",
        "_commit",
        lambda commit, store, op, before, step, now: commit(
            store, op, before, replace(step, rewrites=""), now
        ),
    ),
    "postpones for milliseconds": Defect(
        "test_the_newest_postponed_message_is_due_after_its_delay",
        "postpone",
        lambda postpone, store, claim, message, delay, most: postpone(
            store, claim, message, delay // 1_000, most // 1_000
        ),
    ),
    "cuts long keys": claims(
        "test_keys_of_odd_characters_do_not_meet",
        lambda claim: replace(claim, key=claim.key[:200]),
    ),
    "cuts long tasks": claims(
        "test_keys_of_odd_characters_do_not_meet",
        lambda claim: replace(claim, task=claim.task[:200]),
    ),
    "cuts long names": Defect(
        "test_of_any_name_and_apart_from_the_key_of_that_text",
        "swap",
        lambda swap, store, name, *how: swap(store, name[:200], *how),
    ),
}

DEFECTS = IN_RULES | IN_STORAGE | IN_PACKAGE
