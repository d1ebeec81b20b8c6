"""One test of each operation and of each part of a key's state, out of those of the rules.

A store that leaves the rules to the machine has to load and to save all that they go by. That it
does so is compared with the machine over random operations (``test_stores_same_as_machine.py``);
these tests say by name what is broken, on a store whose suite has not all rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tests.contract.key import KeyTests
from tests.contract.rules.cooling import CoolingDown
from tests.contract.rules.dead_letters import DeadLetters, Discarding, Replaying
from tests.contract.rules.deploying import Deploying
from tests.contract.rules.ending import Endings, Revoking
from tests.contract.rules.holding import Sharing
from tests.contract.rules.keeping import KeepingTests, Reserving
from tests.contract.rules.on_hold import Holds
from tests.contract.rules.outcomes import Outcomes, Repeating
from tests.contract.rules.postponing import Postponing
from tests.contract.rules.queueing import Places, Publishing, QueueingTests, Shadows
from tests.contract.rules.replacing import Replacing
from tests.contract.rules.retrying import Failing, Retries
from tests.contract.rules.waking import Pausing, Unanswered

T = TypeVar("T")


def has(*tests: Callable[..., Any]) -> Callable[[type[T]], type[T]]:
    """Give the class these *tests* of others."""

    def given(suite: type[T]) -> type[T]:
        for test in tests:
            setattr(suite, test.__name__, test)
        return suite

    return given


@has(
    Sharing.test_parked_readers_are_woken_together_and_up_to_the_next_writer,
    Sharing.test_a_slot_that_was_left_is_given_to_the_next,
    CoolingDown.test_who_waits_is_woken_when_it_has_cooled_down,
    Holds.test_nobody_gets_the_key_and_all_are_told_who_keeps_it_and_why,
    Holds.test_only_the_hold_that_was_shown_is_replaced_or_ended,
    Replacing.test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer,
    Reserving.test_a_retry_takes_the_key_that_is_reserved_for_it,
)
class Grants(KeyTests):
    """Holders: readers, slots, what cools down, what is on hold, who is asked to give way."""

    asked = Replacing.asked
    retried = Reserving.retried


@has(
    QueueingTests.test_a_newcomer_does_not_overtake_who_waits,
    Publishing.test_published_messages_are_woken_in_order_one_at_a_time,
    Places.test_a_place_is_kept_before_messages_that_came_later,
    Places.test_who_asks_again_has_waited_since_the_first_time,
    Shadows.test_a_shadow_is_woken_first_when_the_lease_has_ended,
    Postponing.test_a_newer_one_takes_its_place_and_puts_it_off,
    Endings.test_the_first_message_of_a_full_queue_makes_room,
    Deploying.test_each_of_two_tasks_that_share_a_key_speaks_for_its_own,
    Deploying.test_calls_with_other_keys_fill_no_queue_and_make_no_room,
    Revoking.test_a_revoked_task_is_woken_with_its_message_to_end,
    Revoking.test_the_message_of_who_waits_or_was_woken_is_told_and_of_nobody_else,
    Unanswered.test_a_message_of_another_broker_keeps_the_key_for_half_a_minute_or_so,
    Pausing.test_patience_ends_later_by_the_pause,
    Retries.test_nobody_overtakes_the_retry_of_what_is_ordered,
    Retries.test_a_newer_call_takes_its_place,
)
class Waiting(KeyTests):
    """Who waits: in order, in a place, behind its own run, for the newest call, or no longer."""

    shadowed = Shadows.shadowed
    queue = Revoking.queue
    unserved = Pausing.unserved


@has(
    Outcomes.test_a_finished_task_is_forgotten_after_its_time,
    Outcomes.test_a_task_to_be_repeated_goes_back_to_the_head_with_its_message,
    Outcomes.test_an_abandoned_task_comes_before_those_that_have_not_started,
    Repeating.test_a_release_asked_again_is_answered_as_the_first_time,
    KeepingTests.test_a_kept_message_is_found_by_a_sweep_when_the_lease_has_ended,
    DeadLetters.test_a_message_is_dead_lettered_after_so_many_wakes_and_the_next_is_woken,
    Replaying.test_a_replayed_message_is_woken_as_it_was,
    Replaying.test_replaying_what_is_done_lets_it_run_again,
    Discarding.test_a_discarded_message_is_gone_and_its_task_counts_as_done,
    Failing.test_what_the_store_has_of_it_is_a_dead_letter,
    Failing.test_a_replayed_one_is_the_first_again,
)
class Past(KeyTests):
    """What is remembered of a task: that it is done, was lost, has a message, or is dead."""

    kept = KeepingTests.kept
    fails = Failing.fails


@has(
    Sharing.test_a_parked_writer_is_not_starved_by_later_readers,
    Endings.test_nobody_makes_room_for_another_task,
    Reserving.test_a_reserved_key_is_nobody_elses,
    QueueingTests.test_a_wake_reserves_the_key_against_newcomers,
    QueueingTests.test_a_wake_that_nobody_answers_is_repeated_at_growing_distance_for_ever,
    Unanswered.test_the_next_is_woken_when_a_turn_keeps_the_key_no_longer,
    Replaying.test_a_dead_message_whose_task_has_run_by_a_copy_is_forgotten,
)
class Promised(KeyTests):
    """Promises about rules, which the list of promises wants to be shown on more kinds of store."""

    retried = Reserving.retried
