"""What a worker reads, claims and lets go: one decision by property, and many of them in a simulated world."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement_world import World
from worker.placement import decide, oldest_at_most
from worker.placement_view import Demand, Held, Rules, View

NAMES = ("a", "b", "c", "d", "e")
RULES = Rules(dwell_s=10.0, load_s=3.0)
NOW = 1000.0

seconds = st.floats(0, 100)
counts = st.integers(0, 3)


@st.composite
def demands(draw: Any) -> Demand:
    depth = draw(st.integers(0, 5000))
    return Demand(
        depth=depth,
        age=draw(seconds) if depth else 0.0,
        holders=draw(counts),
        loaders=draw(counts),
        rate=draw(st.floats(0, 500)),
        claimed=draw(st.booleans()),
        failures=draw(counts),
        quiet=draw(seconds),
    )


@st.composite
def views(draw: Any) -> View:
    order = draw(st.permutations(NAMES))
    capacity = draw(st.integers(1, 4))
    held_count = draw(st.integers(0, capacity))
    held = tuple(
        Held(name, NOW - draw(seconds), at_work=draw(counts), pinned=draw(st.booleans())) for name in order[:held_count]
    )
    loading = frozenset(order[held_count : held_count + 1]) if held_count < capacity and draw(st.booleans()) else ()
    demand = {name: draw(demands()) for name in NAMES}
    mine = draw(st.sets(st.sampled_from(NAMES), max_size=2))
    return View(
        now=NOW,
        serves=tuple(sorted(NAMES)),
        capacity=capacity,
        held=held,
        loading=frozenset(loading),
        demand=demand,
        claims=frozenset(name for name in mine if not demand[name].claimed),
        failed_until=dict.fromkeys(draw(st.sets(st.sampled_from(NAMES), max_size=2)), NOW + 5),
        idle_s=draw(seconds),
        workers=draw(st.integers(1, 6)),
    )


def names_of(view: View) -> list[str]:
    return [held.name for held in view.held]


@given(views())
def test_resident_queues_are_read_first_and_always_but_for_what_is_about_to_go(view: View) -> None:
    decision = decide(view, RULES)
    staying = [name for name in names_of(view) if name not in decision.evict]
    assert set(decision.read[: len(staying)]) == set(staying)
    assert not set(decision.read) & set(decision.evict)


@given(views())
def test_nothing_goes_that_is_pinned_or_younger_than_its_dwell_time(view: View) -> None:
    held = {one.name: one for one in view.held}
    for name in decide(view, RULES).evict:
        assert not held[name].pinned
        assert NOW - held[name].since >= RULES.dwell_s


@given(views())
def test_what_failed_here_is_not_claimed_until_its_time_is_over(view: View) -> None:
    decision = decide(view, RULES)
    assert not decision.claims & view.failed_until.keys()
    assert not set(decision.load) & view.failed_until.keys()


@given(views())
def test_what_another_has_claimed_is_neither_claimed_nor_read(view: View) -> None:
    decision = decide(view, RULES)
    assert view.demand is not None
    others = {name for name, demand in view.demand.items() if demand.claimed} - set(names_of(view)) - view.loading
    assert not others & decision.claims
    assert not others & set(decision.read)


@given(views())
def test_what_stays_and_what_is_claimed_fits_into_memory(view: View) -> None:
    decision = decide(view, RULES)
    staying = len(view.held) - len(decision.evict)
    assert staying + len(view.loading) + len(decision.claims) <= view.capacity


@given(views())
def test_a_cold_queue_is_read_under_a_claim_that_is_held_already(view: View) -> None:
    decision = decide(view, RULES)
    cold = set(decision.read) - set(names_of(view)) - view.loading - set(decision.fail)
    assert cold <= view.claims & decision.claims
    assert set(decision.load) <= cold


@given(views())
def test_a_decision_is_the_same_for_the_same_view(view: View) -> None:
    assert decide(view, RULES) == decide(view, RULES)


@given(views())
def test_without_a_view_of_the_others_every_queue_is_read_resident_ones_first(view: View) -> None:
    lost = View(now=NOW, serves=view.serves, capacity=view.capacity, held=view.held, demand=None)
    decision = decide(lost, RULES)
    assert sorted(decision.read) == sorted(view.serves)
    assert set(decision.read[: len(view.held)]) == set(names_of(view))
    assert decision.evict == ()


def cold(**demand: Any) -> dict[str, Demand]:
    return {"b": Demand(**demand)}


def alone(since: float, **view: Any) -> View:
    """A worker that holds `a`, and has room for one."""
    return View(now=NOW, serves=("a", "b"), capacity=1, held=(Held("a", NOW - since),), **view)


def test_a_free_place_is_offered_before_the_first_message() -> None:
    first = decide(View(now=NOW, serves=("a", "b"), capacity=2), RULES)
    assert len(first.claims) == 1
    second = decide(View(now=NOW, serves=("a", "b"), capacity=2, claims=first.claims), RULES)
    assert second.claims == {"a", "b"}
    assert set(second.read) == first.claims


def test_a_place_that_is_kept_for_what_nobody_asks_for_goes_to_what_waits() -> None:
    view = View(
        now=100.0,
        serves=("english", "multilingual"),
        capacity=1,
        claims=frozenset({"english"}),
        demand={"english": Demand(), "multilingual": Demand(depth=1, age=0.0)},
    )
    decision = decide(view, Rules())
    assert decision.claims == {"multilingual"}


def test_a_place_that_is_kept_for_what_nobody_asks_for_goes_to_a_backlog_that_others_work_on() -> None:
    view = View(
        now=NOW,
        serves=("a", "b"),
        capacity=1,
        claims=frozenset("a"),
        demand={"a": Demand()} | cold(depth=5000, age=30, holders=1, rate=10),
        idle_s=5,
    )
    assert decide(view, RULES).claims == {"b"}


def test_free_places_are_shared_out_among_workers() -> None:
    view = View(now=NOW, serves=("a", "b"), capacity=2, claims=frozenset("a"), workers=2)
    assert decide(view, RULES).claims == {"a"}


def test_an_idle_checkpoint_makes_room_at_once_when_its_dwell_time_is_over() -> None:
    assert decide(alone(9.9, demand=cold(depth=1, age=50)), RULES).claims == frozenset()
    decision = decide(alone(10, demand=cold(depth=1, age=0.5)), RULES)
    assert decision.claims == {"b"}
    assert decision.evict == ("a",)


def test_a_busy_queue_is_left_when_the_other_has_waited_longer_than_two_loads() -> None:
    busy = {"a": Demand(depth=9, age=1)}
    assert decide(alone(20, demand=busy | cold(depth=1, age=5.9)), RULES).claims == frozenset()
    assert decide(alone(20, demand=busy | cold(depth=1, age=6)), RULES).claims == {"b"}


def test_requests_in_hand_are_finished_before_their_checkpoint_goes() -> None:
    held = (Held("a", NOW - 20, at_work=1),)
    view = View(now=NOW, serves=("a", "b"), capacity=1, held=held, demand=cold(depth=1, age=7), claims=frozenset("b"))
    decision = decide(view, RULES)
    assert decision.evict == ("a",)
    assert decision.read == ()


def test_a_worker_with_work_of_its_own_helps_nobody() -> None:
    backlog = cold(depth=5000, age=30, holders=1, rate=10)
    idle = View(now=NOW, serves=("a", "b"), capacity=2, held=(Held("a", NOW - 20),), demand=backlog, idle_s=5)
    assert decide(idle, RULES).claims == {"b"}
    busy = View(now=NOW, serves=("a", "b"), capacity=2, held=(Held("a", NOW - 20),), demand=backlog, idle_s=0)
    assert decide(busy, RULES).claims == frozenset()


def test_a_backlog_that_is_gone_before_a_load_would_end_gets_no_help() -> None:
    backlog = cold(depth=29, age=30, holders=1, rate=10)
    view = View(now=NOW, serves=("a", "b"), capacity=2, held=(Held("a", NOW - 20),), demand=backlog, idle_s=5)
    assert decide(view, RULES).claims == frozenset()


def test_a_holder_that_answers_nothing_for_long_is_not_relied_on() -> None:
    stuck = {"a": Demand(depth=3, age=1)} | cold(depth=1, age=50, holders=1, quiet=17)
    assert decide(alone(20, demand=stuck), RULES).claims == {"b"}


def test_messages_that_no_worker_can_load_for_are_let_in_to_be_answered_with_the_error() -> None:
    failed = {"failed_until": {"b": NOW + 20}, "workers": 2}
    assert decide(alone(20, demand=cold(depth=1, age=1, failures=1), **failed), RULES).fail == ()
    decision = decide(alone(20, demand=cold(depth=1, age=1, failures=2), **failed), RULES)
    assert decision.fail == ("b",)
    assert "b" in decision.read


@pytest.mark.parametrize(("age", "failing"), [(59, ()), (61, ("b",))])
def test_messages_for_which_pins_leave_no_room_are_let_in_in_the_end(age: float, failing: tuple[str, ...]) -> None:
    held = (Held("a", NOW - 20, pinned=True),)
    view = View(now=NOW, serves=("a", "b"), capacity=1, held=held, demand=cold(depth=1, age=age))
    assert decide(view, RULES).fail == failing


# --- many decisions ---


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 2))
def test_no_message_waits_longer_than_the_bound_under_steady_traffic(
    seed: int, names: int, workers: int, capacity: int
) -> None:
    dice = random.Random(seed)
    world = World(NAMES[:names], workers, capacity, RULES, pace=200)
    bound = oldest_at_most(RULES, load_s=RULES.load_s, checkpoints=names, workers=workers, capacity=capacity)
    for _ in range(150):
        for name in world.names:
            if dice.random() < 0.7:
                world.send(name, dice.randint(1, 4))
        world.step()
        assert world.oldest() <= bound
    assert world.loads <= workers * capacity * (1 + 150 / RULES.dwell_s)
    assert all(stayed >= RULES.dwell_s for _, _, stayed in world.evictions)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_no_message_is_forgotten_while_workers_die(seed: int) -> None:
    dice = random.Random(seed)
    world = World(NAMES, 4, 1, RULES, pace=200)
    for step in range(120):
        world.send(dice.choice(world.names))
        if step in (30, 60):
            world.kill(step // 30 - 1)
        world.step()
    for _ in range(120):
        world.step()
    assert not any(world.queues.values())


def test_three_workers_share_three_checkpoints_and_load_each_once() -> None:
    world = World("abc", 3, 1, RULES, pace=100)
    for _ in range(1000):
        world.send(random.Random(_).choice("abc"))
    for _ in range(60):
        world.step()
    assert not any(world.queues.values())
    assert world.loads <= 4


def test_a_hot_checkpoint_comes_to_be_served_by_all_and_shrinks_back() -> None:
    world = World("abc", 4, 1, RULES, pace=50)
    for _ in range(20):
        for name in "abc":
            world.send(name)
        world.step()
    for _ in range(15):
        world.step()
    world.send("a", 5000)
    start = world.now
    while world.holders("a") < 4:
        world.step()
        assert world.now - start <= 3 * RULES.load_s
    while world.queues["a"]:
        world.step()
    end = world.now
    while world.holders("b") == 0 or world.holders("c") == 0:
        for name in "abc":
            world.send(name)
        world.step()
        assert world.now - end <= 2 * RULES.dwell_s
    assert world.holders("a") <= 2


def test_where_one_worker_cannot_load_a_checkpoint_another_does() -> None:
    world = World("ab", 2, 1, RULES)
    world.broken = {(0, "a"), (0, "b")}
    for _ in range(60):
        world.send("a")
        world.send("b")
        world.step()
    assert len(world.waited) > 60
    assert world.loads <= 12


def test_two_checkpoints_larger_than_memory_take_turns_no_faster_than_their_dwell_time() -> None:
    world = World("ab", 1, 1, RULES)
    for _ in range(200):
        world.send("a")
        world.send("b")
        world.step()
    assert 2 <= world.loads <= 200 / RULES.dwell_s
    assert all(stayed >= RULES.dwell_s for _, _, stayed in world.evictions)


@pytest.mark.parametrize("names", [1, 3, 5])
def test_one_worker_with_room_for_all_loads_each_once_and_waits_for_nothing_else(names: int) -> None:
    world = World(NAMES[:names], 1, 5, RULES)
    for _ in range(60):
        for name in world.names:
            world.send(name)
        world.step()
    assert world.loads == names
    assert not world.evictions
