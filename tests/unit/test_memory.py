"""Amounts of memory: read from a setting, measured of a model, estimated from files; what a budget keeps resident."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laya import Router
from laya.memory import Sizes, bytes_of, bytes_on_disk, parse_bytes
from laya.residency import NoRoom, Residency, ResidentView, choose_victims

pytestmark = pytest.mark.filterwarnings("ignore:checkpoint .* temperatures outside:RuntimeWarning")


@pytest.mark.parametrize(
    ("text", "expected"), [("6GiB", 6 * 2**30), ("1.5 GiB", 3 * 2**29), ("800MB", 800_000_000), ("2kib", 2048)]
)
def test_an_amount_is_a_number_and_a_unit(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "6", "GiB", "6 apples", "-1GiB", "1e3MB"])
def test_what_is_no_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 6GiB"):
        parse_bytes(text)


class Shared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(10, 10, bias=False)
        self.second = self.first
        self.register_buffer("table", torch.zeros(7, dtype=torch.int64))


class Thing:
    def __init__(self, model: Any) -> None:
        self.model = model


def test_parameters_and_buffers_count_once() -> None:
    assert bytes_of(Thing(Shared())) == 10 * 10 * 4 + 7 * 8
    assert bytes_of(Thing(None)) == 0


def test_files_tell_before_a_load_and_the_load_afterwards(golden_checkpoints: dict[str, Path]) -> None:
    sizes = Sizes(golden_checkpoints.get)
    assert sizes.estimate("english") == bytes_on_disk(golden_checkpoints["english"]) > 1000
    assert sizes.estimate("nowhere") == 1
    assert sizes.measure("english", Thing(Shared())) == sizes.estimate("english") == 456


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.booleans(), st.integers(-1, 1)), max_size=8),
    st.integers(0, 200),
)
def test_victims_make_room_as_far_as_pins_allow_and_no_more_than_needed(one: list[Any], room: int) -> None:
    residents = [
        ResidentView(str(place), in_use, size, pinned, rank) for place, (size, in_use, pinned, rank) in enumerate(one)
    ]
    victims = choose_victims(residents, room)
    by_name = {resident.name: resident for resident in residents}
    left = sum(resident.size for resident in residents if resident.name not in victims)
    assert not any(by_name[name].pinned for name in victims)
    assert left <= room or all(resident.pinned or resident.name in victims for resident in residents)
    if victims:
        assert left + by_name[victims[-1]].size > room
    ranks = [by_name[name].rank for name in victims]
    stayed = [resident.rank for resident in residents if not resident.pinned and resident.name not in victims]
    assert ranks == sorted(ranks)
    assert not ranks or not stayed or max(ranks) <= min(stayed)


def test_what_is_pinned_stays_and_what_does_not_fit_beside_it_is_refused() -> None:
    residency = Residency(1, evict_first=True, on_change=lambda *_: None)
    residency.get("a", object)
    residency.pinned = frozenset({"a"})
    with pytest.raises(NoRoom, match="no room for 'b' beside what is pinned: a"):
        residency.get("b", object)
    assert residency.names == ["a"]


def test_those_of_a_lower_rank_go_first() -> None:
    residency = Residency(2, on_change=lambda *_: None)
    residency.get("a", object)
    residency.get("b", object)
    residency.ranks = lambda: {"a": 1}
    residency.get("c", object)
    assert residency.names == ["a", "c"]


def test_a_router_holds_as_many_bytes_of_checkpoints_as_it_may(golden_checkpoints: dict[str, Path]) -> None:
    models = {name: str(path) for name, path in golden_checkpoints.items()}
    probe = Router(models=models, device="cpu", max_memory=10**9)
    sizes = {name: bytes_of(probe.load(name)) for name in models}
    budget = sum(sorted(sizes.values())[-2:])
    router = Router(models=models, device="cpu", max_memory=budget, evict_first=True)
    for name in (*models, *models):
        router.load(name)
        assert sum(sizes[resident] for resident in router.loaded) <= budget
        assert router.estimate(name) == sizes[name]
    assert len(router.loaded) == 2
