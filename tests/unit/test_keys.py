"""Keys from arguments: which calls share a key, and what is refused before any message comes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock.core.access import Access, Keys, Limit, Shared, Wanted, entries
from celery_dlock.core.keys import Key, KeyTemplate, canonical
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError

#: How an error says what is meant.
FIELDS = "write a parameter's name, as in {order_id}, {order.id} or {order[id]}"


def template(key: Any, body: Callable[..., Any]) -> KeyTemplate:
    return KeyTemplate.compile(key, inspect.signature(body), default="shop.charge")


READS = Access(Mode.SHARED)


def alike(*keys: str) -> list[tuple[str, Access]]:
    return [(key, Access()) for key in keys]


def limits(**keys: int) -> list[tuple[str, Access]]:
    return [(key, Access(Mode.LIMITED, n)) for key, n in keys.items()]


def key_of(key: Key, *args: Any, **kwargs: Any) -> str:
    """The one key of a call of a task with a parameter, a default and anything by keyword."""

    def charge(order: Any, currency: str = "EUR", **extra: Any) -> None: ...

    (found,) = template(key, charge).keys(args, kwargs)
    return found


class TestWhichCallsShareAKey:
    def test_positional_and_keyword_arguments_alike(self) -> None:
        assert key_of("order:{order}", 1) == key_of("order:{order}", order=1) == "order:1"

    def test_defaults_are_applied(self) -> None:
        assert key_of("{order}:{currency}", 1) == key_of("{order}:{currency}", 1, "EUR")

    def test_attributes_and_items_are_followed(self) -> None:
        class Order:
            id = 7
            lines = ({"sku": "a"},)

        assert key_of("o:{order.id}", Order()) == "o:7"
        assert key_of("o:{order[id]}", {"id": 7}) == key_of("o:{order.id}", {"id": 7}) == "o:7"
        assert key_of("o:{order.lines[0][sku]}", Order()) == "o:a"

    def test_a_number_as_the_key_of_a_dict_is_found_as_the_text_json_makes_of_it(self) -> None:
        assert key_of("o:{order[1]}", {1: "a"}) == key_of("o:{order[1]}", {"1": "a"}) == "o:a"

    def test_names_may_come_by_keyword_only(self) -> None:
        assert key_of("o:{tenant}", 1, tenant="x") == "o:x"

    def test_a_task_without_a_key_locks_on_its_name_taken_literally(self) -> None:
        nothing = KeyTemplate.compile(None, inspect.signature(lambda: None), default="a.b {c}")

        assert nothing.keys((), {}) == ("a.b%20%7Bc%7D",)
        assert nothing.names == ("a.b {c}",)

    def test_a_callable_is_called_as_the_body_is(self) -> None:
        def by_shop(order: Any, currency: str, **extra: Any) -> str:
            return f"shop:{order}:{currency}:{extra['tenant']}"

        assert key_of(by_shop, order=1, tenant="x") == "shop:1:EUR:x"

    def test_what_a_callable_returns_is_the_key_of_a_template_that_reads_the_same(self) -> None:
        assert key_of(lambda order, currency, **_: f"order:{order}", "ü 1") == key_of(
            "order:{order}", "ü 1"
        )

    def test_a_text_given_by_hand_is_the_key_of_the_template(self) -> None:
        assert canonical("order:42") == key_of("order:{order}", 42)

    def test_braces_are_written_twice(self) -> None:
        assert key_of("{{{order}}}", 1) == "%7B1%7D"

    def test_a_percent_sign_and_a_value_never_make_an_escape(self) -> None:
        assert key_of("100%{order}", 41) == "100%2541" == key_of("100%25{order}", 41)


class TestSeveralKeys:
    def test_are_all_rendered_and_sorted(self) -> None:
        def move(source: str, target: str) -> None: ...

        several = template(["stock:{target}", "stock:{source}", lambda source, target: "a"], move)

        assert several.keys(("x", "b"), {}) == ("a", "stock:b", "stock:x")

    def test_that_are_the_same_collapse(self) -> None:
        def move(source: str, target: str) -> None: ...

        assert template(("s:{source}", "s:{target}"), move).keys((1, 1), {}) == ("s:1",)

    def test_know_the_template_they_came_from(self) -> None:
        def by_hand(source: str, target: str) -> str:
            return "a"

        several = template(["s:{target}", by_hand], by_hand)

        assert several.names == ("s:{target}", "by_hand")
        assert several.rendered(("x", "b"), {}) == ("s:b", "a")

    def test_are_asked_for_by_name_and_then_the_limits_as_they_are_declared(self) -> None:
        keys = Keys.of([*limits(wide=20, narrow=3, a=20), *alike("z", "y")])

        assert keys.own == ("y", "z", "wide", "narrow", "a")

    def test_have_their_first_place_where_there_is_an_order(self) -> None:
        assert Keys.of([("a", READS), *limits(b=3), *alike("c")]).first == "c"
        assert Keys.of([("a", READS), ("b", READS)]).first == "a"

    def test_that_are_shared_beside_others_are_their_parents(self) -> None:
        keys = Keys.of([("b", READS), *limits(c=3), *alike("d"), ("a", READS)])

        assert (keys.own, keys.parents) == (("d", "c"), ("a", "b"))
        assert Keys.of([("a", READS), ("b", READS)]).own == ("a", "b")

    def test_of_several_each_knows_the_calls_with_the_same_ones(self) -> None:
        def sets(*pairs: tuple[str, Access]) -> set[str]:
            return {access.keyset for access in Keys.of(pairs).access.values()}

        both, turned, others = (sets(*alike(*names)) for names in ("ab", "ba", "ac"))

        assert len(both) == 1
        assert len(both | turned | others) == 3
        assert sets(*alike(*"ab"), ("c", READS)) == both
        assert sets(*alike("a")) == sets(*alike("a"), ("c", READS)) == {""}

    def test_that_are_asked_for_in_two_ways_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="'a' is given twice, and not in the same way"):
            Keys.of([*limits(a=3), *alike("a")])

        assert Keys.of([*limits(a=3), *limits(a=3)]).own == ("a",)

    def test_say_each_how_it_is_held(self) -> None:
        several: list[Wanted] = [Limit("a", 3, cooldown=60), Shared("b"), "c"]

        assert entries(several) == [
            ("a", Access(Mode.LIMITED, 3, cooldown=60.0)),
            ("b", READS),
            ("c", Access()),
        ]

    def test_with_a_limit_of_one_are_held_alone_as_without(self) -> None:
        assert entries(Limit("a", 1)) == entries("a") == [("a", Access(Mode.EXCLUSIVE))]
        assert entries(Limit("a", 1, cooldown=9)) == [("a", Access(cooldown=9.0))]

    def test_a_callable_object_is_labelled_by_its_class(self) -> None:
        assert template(functools.partial(str), lambda: None).names == ("partial",)

    @pytest.mark.parametrize("text", ["50%sure", "{{other}}", "{{order}}:{order}", "%s:{order}"])
    def test_text_that_only_resembles_another_notation_is_text(self, text: str) -> None:
        assert key_of(text, 7)


class TestRefusedWhenTheTaskIsDefined:
    @pytest.mark.parametrize(
        ("key", "why"),
        [
            ("{order_id}", "no parameter 'order_id'; did you mean 'order'"),
            ("{quantity}", "known: currency, order"),
            ("o:%s", "%s is text, the same for all; write {order}"),
            ("o:%(currency)s", "%(currency)s is text, the same for all; write {currency}"),
            ("o:{{order}}", "{{order}} is text, the same for all; write {order}"),
            ("{order!r}", "{order} takes no !conversion"),
            ("{order:>5}", "{order} takes no !conversion and no :format"),
            ("{order:{currency}}", "no :format"),
            ("{}", f"{{}} is no field; {FIELDS}"),
            ("{0}", "{0} is no field"),
            ("{ order }", "{ order } is no field"),
            ("{order.}", "is no field"),
            ("{order[}", "expected '}'"),
            ("{order", "expected '}'"),
            ("order}", "Single '}'"),
            ("", "must not be empty"),
            ([], "at least one key"),
            (["{order}", ""], "must not be empty"),
            (42, "a template or a callable, not int"),
            (["a", None], "a template or a callable, not NoneType"),
            (b"order", "a template or a callable, not int"),
            (lambda: "a", "lock key <lambda>() is called as the task is, (order: "),
            (lambda order: "a", "too many positional arguments"),
            (lambda order, currency, more: "a", "missing a required argument: 'more'"),
        ],
    )
    def test_a_key_that_cannot_work(self, key: Any, why: str) -> None:
        def charge(order: Any, currency: str = "EUR") -> None: ...

        with pytest.raises(ConfigurationError) as caught:
            template(key, charge)

        assert why in str(caught.value)

    def test_a_callable_without_a_keyword_of_the_task(self) -> None:
        def charge(order: int, *, currency: str) -> None: ...

        with pytest.raises(ConfigurationError, match="currency"):
            template(lambda order: "a", charge)

        assert template(lambda order, *, currency: "a", charge).keys((1,), {"currency": "x"})

    def test_a_callable_that_takes_anything_is_accepted(self) -> None:
        assert key_of(lambda *args, **kwargs: f"k:{args[0]}", 1) == "k:1"


class TestRefusedWhenAMessageComes:
    def test_an_object_without_a_text_of_its_own(self) -> None:
        class Order: ...

        with pytest.raises(ConfigurationError) as caught:
            key_of("o:{order}", Order())

        assert str(caught.value) == (
            "lock key 'o:{order}', {order}: Order has no text that is the same in every process; "
            "write what names it, such as {order.id} or {order[id]}"
        )

    def test_such_an_object_inside_a_list(self) -> None:
        with pytest.raises(ConfigurationError, match="object has no text"):
            key_of("o:{order}", [object()])

    @pytest.mark.parametrize(
        ("key", "order", "why"),
        [
            ("{tenant}", 1, "{tenant}: the call has no such argument"),
            ("{order.id}", {"ID": 1}, "{order.id}: dict has no .id"),
            ("{order.items}", {"id": 1}, "{order.items}: dict has no .items"),
            ("{order[id]}", {}, "dict has no [id]"),
            ("{order[3]}", [1], "list has no [3]"),
            ("{order[id]}", 5, "int has no [id]"),
            ("{order}", float("nan"), "nan is not a finite number"),
            ("{order}", "", "a key must not be empty"),
        ],
    )
    def test_an_argument_that_makes_no_key(self, key: str, order: Any, why: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            key_of(key, order)

        assert why in str(caught.value)

    @pytest.mark.parametrize(
        ("result", "why"),
        [(None, "not NoneType"), (42, "not int"), (["a"], "not list"), ("", "not be empty")],
    )
    def test_a_callable_that_returns_no_key(self, result: Any, why: str) -> None:
        def by_hand(*args: Any, **kwargs: Any) -> Any:
            return result

        with pytest.raises(ConfigurationError, match=rf"lock key from by_hand\(\): .*{why}"):
            key_of(by_hand, 1)

    def test_a_call_that_does_not_fit_the_task_is_a_type_error_as_without_a_lock(self) -> None:
        with pytest.raises(TypeError, match="missing a required argument: 'order'"):
            key_of("{order}")
