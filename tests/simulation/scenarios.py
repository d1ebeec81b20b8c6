"""What a worker is put through on every stage. Nothing that matters in it is left to chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.stage import Stage

Play = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """*play* is what happens to a worker with so many *slots* that takes *prefetch* for each.

    A soft shutdown takes *softly* seconds; with *cancels* a lost connection ends what runs.
    """

    play: Play
    slots: int = 1
    prefetch: int = 1
    prefork: bool = True
    softly: float = 0.0
    cancels: bool = False

    @property
    def conf(self) -> Mapping[str, Any]:
        """Of Celery. As it puts back the prefetch count, a thread may take from the loop the answer
        that it waits for, and then that waits for ever (5.7).
        """
        return {
            "worker_enable_prefetch_count_reduction": self.prefork,
            "worker_soft_shutdown_timeout": self.softly,
            "worker_cancel_long_running_tasks_on_connection_loss": self.cancels,
        }

    def act(self, stage: Stage) -> Mapping[str, Any]:
        """Play it to its end; what was seen."""
        self.play(stage)
        stage.settles()
        stage.stop()
        stage.gone()
        return stage.what_was_seen()


SCENARIOS: dict[str, Scenario] = {}


def scenario(**crew: Any) -> Callable[[Play], Play]:
    """Adds it, by its name and for such a worker."""

    def add(play: Play) -> Play:
        pool = "" if crew.get("prefork", True) else " in threads"
        SCENARIOS[play.__name__.replace("_", " ") + pool] = Scenario(play, **crew)
        return play

    return add


# How many messages a worker takes, and when it acknowledges.


@scenario()
@scenario(prefork=False)
def an_early_one_is_acknowledged_as_it_begins(on: Stage) -> None:
    on.call("early", "a", "b", "c", holds=True)
    on.until("ack", "a")
    on.until("received", "b")
    on.go("a")
    on.until("ack", "b")
    on.go("b")
    on.until("ack", "c")
    on.go("c")
    on.ends("a", "b", "c")


@scenario(prefetch=2)
@scenario(slots=2)
@scenario(slots=2, prefork=False)
def a_late_one_is_acknowledged_as_it_has_ended(on: Stage) -> None:
    on.call("late", "a", "b", "c", "d", holds=True)
    on.until("received", "a", "b")
    on.go("a", "b", "c", "d")
    on.ends("a", "b", "c", "d")


@scenario()
def what_has_a_countdown_takes_no_place_of_others(on: Stage) -> None:
    on.call("late", "a", "b", "c", countdown=3600)
    on.until("received", "a", "b", "c")
    on.call("late", "d", "e")
    on.ends("d", "e")


# How bodies end.


@scenario()
@scenario(prefork=False)
def bodies_end_in_every_way(on: Stage) -> None:
    for ending in ("fails", "rejects"):
        on.call("early", f"early {ending}", ending=ending, holds=True)
        on.until("ack", f"early {ending}")
        on.go(f"early {ending}")
        on.until("ended", f"early {ending}")
    for ending in ("fails", "rejects", "requeues", "retries"):
        on.call("late", ending, ending=ending)
    on.ends("fails", "requeues", "retries")
    on.call("nobody's", "unknown")
    on.ends("unknown")


@scenario(slots=2)
def bodies_outlast_their_time(on: Stage) -> None:
    on.call("softly", "a", holds=True)
    on.call("hardly", "b", holds=True)
    on.ends("a", "b")
    on.call("late", "c")
    on.ends("c")


@scenario(prefetch=2)
@scenario(prefetch=2, prefork=False)
def one_is_revoked_before_it_begins(on: Stage) -> None:
    on.call("late", "a", "b", holds=True)
    on.until("began", "a")
    on.until("received", "b")
    on.revoke("b")
    on.go("a", "b")
    on.ends("a", "b")
    on.call("late", "c")
    on.revoke("d")
    on.call("late", "d")
    on.until("ack", "c", "d")  # which has its result since it was revoked


@scenario(prefetch=2)
def one_is_revoked_and_terminated(on: Stage) -> None:
    on.call("late", "a", "b", holds=True)
    on.until("began", "a")
    on.until("received", "b")
    on.revoke("b", terminate=True)
    on.revoke("a", terminate=True)
    on.ends("a", "b")
    on.call("early", "c", holds=True)
    on.until("ack", "c")
    on.revoke("c", terminate=True)
    on.ends("c")
    on.call("queued", "d", key="key", holds=True)
    on.until("began", "d")
    on.revoke("d", terminate=True)
    on.call("queued", "e", key="key")
    on.ends("d", "e")


# Deaths.


@scenario(slots=3)
def a_child_is_killed(on: Stage) -> None:
    on.call("early", "early", holds=True)
    on.until("ack", "early")
    on.call("careless", "careless", holds=True)
    on.call("late", "late", holds=True)
    on.until("began", "early", "careless", "late")
    for task in ("early", "careless", "late"):
        on.kill_body(task)
    on.ends("early", "careless")
    on.until("began", "late", times=2)
    on.go("late")
    on.ends("late")


@scenario(prefetch=3)
def a_worker_is_killed(on: Stage) -> None:
    on.call("early", "a", holds=True)
    on.until("ack", "a")
    on.call("late", "b")
    on.call("early", "c", holds=True)
    on.until("received", "b", "c")
    on.kill()
    on.start()
    on.until("ack", "b", "c")
    on.go("c")
    on.ends("c")


@scenario()
def what_workers_had_goes_back_to_its_place(on: Stage) -> None:
    on.call("late", "a", holds=True)
    on.until("began", "a")
    on.start()
    on.call("late", "b", holds=True)
    on.until("began", "b")
    on.call("late", "c")
    on.kill(0)
    on.until("received", "a", times=1)
    on.kill(1)


@scenario(slots=2)
def no_child_outlives_its_main_process(on: Stage) -> None:
    on.call("late", "a", holds=True)
    on.until("began", "a")
    on.kill()
    on.start()
    on.until("began", "a", times=2)
    on.go("a")
    on.ends("a")


# A lost connection.


@scenario(slots=2)
@scenario(slots=2, prefork=False)
def the_connection_is_lost(on: Stage) -> None:
    on.call("late", "a", holds=True)
    on.until("began", "a")
    on.disconnect()
    on.until("began", "a", times=2)
    on.go("a")
    on.until("ended", "a", times=2)


def _lose_it_with_full_hands(on: Stage) -> None:
    """Two run, two more are taken, and two are left at the broker."""
    on.call("late", "a", "b", holds=True)
    on.until("began", "a", "b")
    on.call("late", "c", "d", "e", "f", holds=True)
    on.until("received", "c", "d")
    on.disconnect()
    on.until("received", "a", "b", times=2)


@scenario(slots=2, prefetch=2)
def who_loses_it_with_its_hands_full_takes_fewer(on: Stage) -> None:
    _lose_it_with_full_hands(on)
    on.kill()


@scenario(slots=2, prefetch=2)
@scenario(slots=2, prefetch=2, prefork=False)
def and_goes_on_as_before(on: Stage) -> None:
    _lose_it_with_full_hands(on)
    on.go("a", "c", "d")
    on.until("received", "c", "d", times=2)
    on.until("received", "e")
    on.go("b", "e", "f")
    on.until("ended", "a", "b", times=2)
    on.until("ended", "e", "f")


@scenario(slots=3, cancels=True)
def what_runs_is_cancelled_as_it_is_lost(on: Stage) -> None:
    on.call("early", "a", holds=True)
    on.until("ack", "a")
    on.call("late", "b", holds=True)
    on.call("queued", "c", key="key", holds=True)
    on.until("began", "a", "b", "c")
    on.disconnect()
    on.until("began", "b", "c", times=2)
    on.go("a", "b", "c")
    on.ends("a", "b", "c")


@scenario(slots=2)
@scenario(slots=2, prefork=False)
def a_copy_meets_the_one_that_runs(on: Stage) -> None:
    on.call("queued", "a", holds=True)
    on.until("began", "a")
    on.disconnect()
    on.until("ack", "a")
    on.go("a")
    on.until("in vain", "a")


# A warm shutdown.


@scenario(prefetch=4)
def what_has_not_begun_goes_back(on: Stage) -> None:
    on.call("late", "a", holds=True)
    on.until("began", "a")
    on.call("late", "b")
    on.call("early", "c")
    on.call("late", "d", countdown=3600)
    on.until("received", "b", "c", "d")
    on.stop()
    on.go("a")


# A cold shutdown, and a soft one.


@scenario(slots=3, prefetch=2)
def what_runs_is_cancelled_and_goes_back(on: Stage) -> None:
    on.call("early", "a", holds=True)
    on.until("ack", "a")
    on.call("late", "b", holds=True)
    on.call("queued", "c", key="key", holds=True)
    on.until("began", "a", "b", "c")
    on.call("late", "d", "e")
    on.call("late", "f", countdown=3600)
    on.until("received", "d", "e", "f")
    on.stop_cold()
    on.gone()


@scenario(slots=3, softly=5.0)
def what_ends_in_time_is_seen_through(on: Stage) -> None:
    on.call("late", "a", "b", holds=True)
    on.call("early", "c", holds=True)
    on.until("began", "a", "b")
    on.until("ack", "c")
    on.stop_cold()
    on.go("a", "c")
    on.gone()
    on.start()
    on.until("began", "b", times=2)
    on.go("b")
    on.ends("b")


# Locks.


@scenario(slots=2)
@scenario(slots=2, prefork=False)
def they_wait_for_a_key_in_their_order(on: Stage) -> None:
    on.call("queued", "a", key="key", holds=True)
    on.until("began", "a")
    for name in ("b", "c"):
        on.call("queued", name, key="key")
        on.until("ack", name)
    on.go("a")
    on.ends("a", "b", "c")


@scenario(slots=2)
def one_comes_back_for_its_key(on: Stage) -> None:
    on.call("back", "a", key="key", holds=True)
    on.until("began", "a")
    on.call("back", "b", key="key")
    on.until("ack", "b")
    on.go("a")
    on.ends("a", "b")
