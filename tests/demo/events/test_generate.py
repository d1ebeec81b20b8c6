from __future__ import annotations

from collections import Counter

from example_project.events import generate


def test_the_committed_file_is_what_the_generator_makes() -> None:
    assert generate.FILE.read_text() == generate.as_csv(generate.generate())


def test_the_file_is_read_as_it_was_made() -> None:
    assert generate.read() == generate.generate()


def test_another_seed_makes_other_events() -> None:
    assert generate.generate(seed=1) != generate.generate(seed=2)


def test_there_are_500_events_of_40_orders_and_some_orders_are_hot() -> None:
    events = generate.generate()
    per_order = Counter(event.order_id for event in events)
    assert len({event.event_id for event in events}) == len(events) == 500
    assert per_order.keys() == set(generate.ORDERS)
    assert {order for order, _ in per_order.most_common(len(generate.HOT))} == set(generate.HOT)
    assert min(per_order[order] for order in generate.HOT) >= 50


def test_each_order_begins_with_its_creation_and_counts_its_events() -> None:
    for order_id in generate.ORDERS:
        life = [event for event in generate.generate() if event.order_id == order_id]
        assert life[0].kind == "created"
        assert [event.sequence for event in life] == list(range(1, len(life) + 1))


def test_no_order_gives_back_more_than_was_paid() -> None:
    balance: Counter[int] = Counter()
    for event in generate.generate():
        balance[event.order_id] += event.amount
        assert balance[event.order_id] >= 0
