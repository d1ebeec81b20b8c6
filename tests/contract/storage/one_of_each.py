"""One test of each operation and of each part of a key's state, out of those of the rules.

A store that leaves the rules to the machine has to load and to save all that they go by. That it
does so is compared with the machine over random operations (``test_stores_same_as_machine.py``);
these tests say by name what is broken, on a store whose suite has not all rules.
"""

from __future__ import annotations

from celery_dlock.testing.contract.words import StoreUnderTest
from tests.contract.rules.cooling import CoolingDown
from tests.contract.rules.dead_letters import DeadLetters, Discarding, Replaying
from tests.contract.rules.ending import Endings, Revoking
from tests.contract.rules.holding import Sharing
from tests.contract.rules.keeping import KeepingTests, Reserving
from tests.contract.rules.newest import Postponing, Rewriting
from tests.contract.rules.on_hold import Holds
from tests.contract.rules.outcomes import Outcomes, Repeating
from tests.contract.rules.queueing import Places, Publishing, QueueingTests, Shadows
from tests.contract.rules.replacing import Replacing
from tests.contract.rules.waking import Pausing, Unanswered


class Grants(StoreUnderTest):
    """Holders: readers, slots, what cools down, what is on hold, who is asked to give way."""

    asked = Replacing.asked
    retried = Reserving.retried

    test_parked_readers_are_woken_together_and_up_to_the_next_writer = (
        Sharing.test_parked_readers_are_woken_together_and_up_to_the_next_writer
    )
    test_a_slot_that_was_left_is_given_to_the_next = (
        Sharing.test_a_slot_that_was_left_is_given_to_the_next
    )
    test_who_waits_is_woken_when_it_has_cooled_down = (
        CoolingDown.test_who_waits_is_woken_when_it_has_cooled_down
    )
    test_nobody_gets_the_key_and_all_are_told_who_keeps_it_and_why = (
        Holds.test_nobody_gets_the_key_and_all_are_told_who_keeps_it_and_why
    )
    test_only_the_hold_that_was_shown_is_replaced_or_ended = (
        Holds.test_only_the_hold_that_was_shown_is_replaced_or_ended
    )
    test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer = (
        Replacing.test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer
    )
    test_a_retry_takes_the_key_that_is_reserved_for_it = (
        Reserving.test_a_retry_takes_the_key_that_is_reserved_for_it
    )


class Waiting(StoreUnderTest):
    """Who waits: in order, in a place, behind its own run, for the newest call, or no longer."""

    shadowed = Shadows.shadowed
    queue = Revoking.queue
    unserved = Pausing.unserved

    test_a_newcomer_does_not_overtake_who_waits = (
        QueueingTests.test_a_newcomer_does_not_overtake_who_waits
    )
    test_published_messages_are_woken_in_order_one_at_a_time = (
        Publishing.test_published_messages_are_woken_in_order_one_at_a_time
    )
    test_a_place_is_kept_before_messages_that_came_later = (
        Places.test_a_place_is_kept_before_messages_that_came_later
    )
    test_a_shadow_is_woken_first_when_the_lease_has_ended = (
        Shadows.test_a_shadow_is_woken_first_when_the_lease_has_ended
    )
    test_the_newest_message_is_woken_in_the_place_of_the_first = (
        Rewriting.test_the_newest_message_is_woken_in_the_place_of_the_first
    )
    test_a_newer_one_takes_its_place_and_puts_it_off = (
        Postponing.test_a_newer_one_takes_its_place_and_puts_it_off
    )
    test_the_first_message_of_a_full_queue_makes_room = (
        Endings.test_the_first_message_of_a_full_queue_makes_room
    )
    test_a_revoked_task_is_woken_with_its_message_to_end = (
        Revoking.test_a_revoked_task_is_woken_with_its_message_to_end
    )
    test_a_message_of_another_broker_keeps_the_key_for_half_a_minute_or_so = (
        Unanswered.test_a_message_of_another_broker_keeps_the_key_for_half_a_minute_or_so
    )
    test_patience_ends_later_by_the_pause = Pausing.test_patience_ends_later_by_the_pause


class Past(StoreUnderTest):
    """What is remembered of a task: that it is done, was lost, has a message, or is dead."""

    kept = KeepingTests.kept

    test_a_finished_task_is_forgotten_after_its_time = (
        Outcomes.test_a_finished_task_is_forgotten_after_its_time
    )
    test_a_task_to_be_repeated_goes_back_to_the_head_with_its_message = (
        Outcomes.test_a_task_to_be_repeated_goes_back_to_the_head_with_its_message
    )
    test_an_abandoned_task_comes_before_those_that_have_not_started = (
        Outcomes.test_an_abandoned_task_comes_before_those_that_have_not_started
    )
    test_a_release_asked_again_is_answered_as_the_first_time = (
        Repeating.test_a_release_asked_again_is_answered_as_the_first_time
    )
    test_a_kept_message_is_found_by_a_sweep_when_the_lease_has_ended = (
        KeepingTests.test_a_kept_message_is_found_by_a_sweep_when_the_lease_has_ended
    )
    test_a_message_is_dead_lettered_after_so_many_wakes_and_the_next_is_woken = (
        DeadLetters.test_a_message_is_dead_lettered_after_so_many_wakes_and_the_next_is_woken
    )
    test_a_replayed_message_is_woken_as_it_was = (
        Replaying.test_a_replayed_message_is_woken_as_it_was
    )
    test_a_discarded_message_is_gone_and_its_task_counts_as_done = (
        Discarding.test_a_discarded_message_is_gone_and_its_task_counts_as_done
    )
