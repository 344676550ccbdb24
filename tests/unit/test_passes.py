"""Which waiting rows make the next pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laya.passes import LOOK_AHEAD, PassLimits, choose_pass

lengths_of_rows = st.lists(st.integers(1, 512), min_size=1, max_size=80)
limits_of_passes = st.builds(
    PassLimits, tokens=st.integers(1, 5000), rows=st.integers(1, 64), waste=st.floats(0, 0.9, allow_nan=False)
)


def padded(chosen: list[int], lengths: list[int]) -> int:
    return len(chosen) * max(lengths[place] for place in chosen)


@given(lengths_of_rows, limits_of_passes)
def test_the_oldest_row_is_always_in_the_next_pass(lengths: list[int], limits: PassLimits) -> None:
    assert 0 in choose_pass(lengths, limits)


@given(lengths_of_rows, limits_of_passes)
def test_a_pass_keeps_its_limits_unless_one_row_alone_breaks_them(lengths: list[int], limits: PassLimits) -> None:
    chosen = choose_pass(lengths, limits)
    assert len(set(chosen)) == len(chosen)
    if len(chosen) > 1:
        tokens = padded(chosen, lengths)
        assert tokens <= limits.tokens
        assert len(chosen) <= limits.rows
        assert tokens - sum(lengths[place] for place in chosen) <= limits.waste * tokens


@given(lengths_of_rows, limits_of_passes)
def test_no_row_that_fits_is_left_between_those_that_were_chosen(lengths: list[int], limits: PassLimits) -> None:
    chosen = choose_pass(lengths, limits)
    shortest, longest = lengths[chosen[0]], lengths[chosen[-1]]
    left_between = [at for at, one in enumerate(lengths) if shortest < one < longest and at not in chosen]
    assert left_between == []


@given(lengths_of_rows, limits_of_passes)
def test_every_row_gets_its_turn(lengths: list[int], limits: PassLimits) -> None:
    waiting = list(range(len(lengths)))
    for _ in lengths:
        if waiting:
            chosen = {waiting[at] for at in choose_pass([lengths[row] for row in waiting], limits)}
            waiting = [row for row in waiting if row not in chosen]
    assert waiting == []


def test_rows_of_one_length_fill_a_pass() -> None:
    assert sorted(choose_pass([20] * 100, PassLimits(tokens=10_000, rows=32))) == list(range(32))


def test_a_row_of_another_length_waits_for_a_pass_that_it_does_not_pad() -> None:
    assert choose_pass([20, 300, 21, 19], PassLimits(tokens=10_000, rows=32, waste=0.15)) == [3, 0, 2]


def test_a_choice_looks_at_a_bounded_number_of_rows() -> None:
    chosen = choose_pass([20] * (LOOK_AHEAD * 3), PassLimits(tokens=10**9, rows=10**6))
    assert sorted(chosen) == list(range(LOOK_AHEAD))
