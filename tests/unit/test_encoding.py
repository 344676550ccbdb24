"""The sequence of a row: what is cut, where the markers stand, and what the usage says of it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from laya.encoding import Layout, QuestionTokens, SpecialIds, TextTokenizer, lay_out, tokenize_question, usage_of
from laya.questions import Question, parse_questions

TOKENIZER = Path(__file__).parents[1] / "data/golden/checkpoints/english/tokenizer/tokenizer.json"
CLS, SEP, MASK = 2, 3, 4
SPECIAL = SpecialIds(CLS, SEP, MASK)
INSTRUCTION, OPTION, STATE = 1000, 2000, 100_000  # where the made-up ids of each part begin


def asked(k: int, order: list[int] | None = None) -> Question:
    definition = {
        "type": "choice",
        "instructions": "x",
        "criteria": [f"c{i}" for i in range(k)],
        "option_order": order,
    }
    return parse_questions({"q": definition})[0]


def row(
    instruction: int = 4,
    options: tuple[int, ...] = (2, 3),
    state: int = 5,
    max_len: int = 512,
    head_max_len: int = 192,
    keeps_end: bool = False,
    order: list[int] | None = None,
) -> Layout:
    """Lay out parts of these lengths, each of ids of its own."""
    tokens = QuestionTokens(
        list(range(INSTRUCTION, INSTRUCTION + instruction)),
        [list(range(OPTION + 100 * option, OPTION + 100 * option + length)) for option, length in enumerate(options)],
    )
    return lay_out(
        asked(len(options), order),
        tokens,
        range(STATE, STATE + state),
        keeps_end,
        SPECIAL,
        max_len,
        head_max_len,
    )


def part(layout: Layout, start: int, stop: int) -> list[int]:
    return [token for token in layout.ids if start <= token < stop]


def state_of(layout: Layout) -> list[int]:
    return [token - STATE for token in layout.ids if token >= STATE]


def test_a_row_is_instruction_options_and_state_between_special_tokens() -> None:
    found = row()
    assert found.ids == [
        CLS, 1000, 1001, 1002, 1003, SEP,
        MASK, 2000, 2001, MASK, 2100, 2101, 2102, SEP,
        100_000, 100_001, 100_002, 100_003, 100_004, SEP,
    ]  # fmt: skip
    assert found.markers == (6, 9)
    assert found.dropped == 0


def test_an_option_order_moves_the_slots_and_keeps_the_markers_in_the_callers_order() -> None:
    found = row(options=(1, 2, 3), order=[2, 0, 1])
    assert found.ids[6:15] == [MASK, 2200, 2201, 2202, MASK, 2000, MASK, 2100, 2101]
    assert found.markers == (10, 12, 6)
    assert [found.ids[marker + 1] for marker in found.markers] == [2000, 2100, 2200]


def test_an_option_keeps_its_first_48_tokens_and_its_mask() -> None:
    found = row(options=(60, 2))
    assert part(found, 2000, 2100) == list(range(2000, 2048))


def test_an_instruction_keeps_what_the_options_leave_of_the_head() -> None:
    found = row(instruction=500, options=(10, 20), head_max_len=64)
    assert len(part(found, 1000, 2000)) == 64 - 11 - 21


def test_options_are_cut_alike_when_they_leave_less_than_16_tokens() -> None:
    found = row(instruction=500, options=(30, 30, 2), head_max_len=75)  # 75 - 31 - 31 - 3 = 10
    longest = (75 - 16) // 3
    assert [len(part(found, start, start + 100)) for start in (2000, 2100, 2200)] == [longest - 1, longest - 1, 2]
    assert len(part(found, 1000, 2000)) == 75 - 2 * longest - 3


def test_options_that_leave_exactly_16_tokens_are_not_cut() -> None:
    found = row(instruction=500, options=(30, 30), head_max_len=78)
    assert len(part(found, 2000, 2200)) == 60
    assert len(part(found, 1000, 2000)) == 16


def test_many_options_keep_4_tokens_each_and_an_instruction_8() -> None:
    found = row(instruction=500, options=(9,) * 40, head_max_len=64)
    assert [len(part(found, 2000 + 100 * i, 2100 + 100 * i)) for i in range(40)] == [3] * 40
    assert len(part(found, 1000, 2000)) == 8


def test_a_head_budget_below_everything_is_no_accident() -> None:
    found = row(instruction=500, options=(9, 9), head_max_len=1)
    assert len(part(found, 2000, 2200)) == 6
    assert len(part(found, 1000, 2000)) == 8


def test_a_long_state_keeps_its_beginning() -> None:
    found = row(state=1000, max_len=40)  # 14 of head, 1 at the end
    assert state_of(found) == list(range(25))
    assert (len(found.ids), found.ids[-1], found.dropped) == (40, SEP, 975)


def test_a_long_conversation_keeps_its_end() -> None:
    found = row(state=1000, max_len=40, keeps_end=True)
    assert state_of(found) == list(range(975, 1000))
    assert found.dropped == 975


def test_a_short_conversation_is_kept_whole() -> None:
    assert state_of(row(state=5, keeps_end=True)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("keeps_end", [False, True])
@pytest.mark.parametrize("max_len", [10, 13, 14, 15])
def test_a_head_that_leaves_no_room_drops_the_whole_state(max_len: int, keeps_end: bool) -> None:
    found = row(state=7, max_len=max_len, keeps_end=keeps_end)
    assert state_of(found) == []
    assert len(found.ids) == max_len
    assert found.dropped == 7


@pytest.mark.parametrize(("max_len", "fitting"), [(9, 1), (7, 1), (6, 0), (1, 0)])
def test_a_marker_without_room_is_refused_with_the_budgets_to_change(max_len: int, fitting: int) -> None:
    with pytest.raises(ValueError, match=f"^question 'q': only {fitting} of its 2 option markers fit") as refusal:
        row(max_len=max_len, head_max_len=100)
    assert f"max_len={max_len}" in str(refusal.value)
    assert "head_max_len=100" in str(refusal.value)


def test_a_marker_in_the_last_place_fits() -> None:
    assert row(max_len=10).markers == (6, 9)


@given(
    instruction=st.integers(0, 60),
    options=st.lists(st.integers(0, 60), min_size=1, max_size=50).map(tuple),
    state=st.integers(0, 200),
    max_len=st.integers(1, 300),
    head_max_len=st.integers(1, 200),
    keeps_end=st.booleans(),
)
def test_a_row_fits_its_budget_and_accounts_for_every_token_of_the_state(
    instruction: int, options: tuple[int, ...], state: int, max_len: int, head_max_len: int, keeps_end: bool
) -> None:
    try:
        found = row(instruction, options, state, max_len, head_max_len, keeps_end)
    except ValueError:
        return
    assert len(found.ids) <= max_len
    assert all(found.ids[marker] == MASK for marker in found.markers)
    assert len(set(found.markers)) == len(options)
    kept = state_of(found)
    assert len(kept) + found.dropped == state
    expected = range(state - len(kept), state) if keeps_end else range(len(kept))
    assert kept == list(expected)


def usage(layouts: list[Layout], state_tokens: int) -> dict[str, Any]:
    questions = parse_questions({f"q{i}": {"type": "noul", "instructions": "x"} for i in range(len(layouts))})
    return usage_of(questions, layouts, state_tokens)


def test_usage_sums_the_rows_and_reports_the_worst_cut() -> None:
    layouts = [row(state=30, max_len=40), row(state=30), row(instruction=10, state=30, max_len=40)]
    assert usage(layouts, 30) == {
        "input_tokens": 40 + 45 + 40,
        "output_tokens": 0,
        "state_tokens": 30,
        "state_tokens_dropped": 11,
        "truncated": True,
        "truncated_questions": ["q0", "q2"],
    }


def test_usage_of_whole_states_names_no_question() -> None:
    found = usage([row()], 5)
    assert (found["truncated"], found["truncated_questions"], found["state_tokens_dropped"]) == (False, [], 0)


def test_options_that_read_the_same_after_the_cut_are_reported() -> None:
    tokens = QuestionTokens([1], [[7, 7, 7, 7, 7], [7, 7, 7, 8, 8], [7, 7, 9]])
    found = lay_out(asked(3), tokens, [], False, SPECIAL, 512, 20)
    assert found.options == {"total": 3, "distinct": 2, "tokens_per_option": 4}
    assert usage([found], 0)["options"] == {"q0": found.options}


def test_options_that_differ_are_not_reported() -> None:
    assert row().options is None
    assert "options" not in usage([row()], 5)


@pytest.fixture(scope="module")
def texts() -> TextTokenizer:
    return TextTokenizer(Tokenizer.from_file(str(TOKENIZER)), "[MASK]", SPECIAL)


def test_no_special_tokens_are_added_to_a_text(texts: TextTokenizer) -> None:
    assert not {CLS, SEP, MASK} & set(texts.ids("refund the invoice"))


def test_a_literal_mask_becomes_a_space(texts: TextTokenizer) -> None:
    assert texts.ids("refund[MASK]the [MASK] invoice") == texts.ids("refund the   invoice")


def test_an_empty_text_has_no_tokens(texts: TextTokenizer) -> None:
    assert texts.ids("") == []


def test_truncation_and_padding_saved_with_a_tokenizer_are_not_applied() -> None:
    saved = Tokenizer.from_file(str(TOKENIZER))
    saved.enable_truncation(4)
    saved.enable_padding(length=64)
    short, long = "ok", "refund the invoice twice please today"
    plain = TextTokenizer(Tokenizer.from_file(str(TOKENIZER)), "[MASK]", SPECIAL)
    assert TextTokenizer(saved, "[MASK]", SPECIAL).ids_of([short, long]) == plain.ids_of([short, long])


def test_half_a_surrogate_pair_reads_as_a_replacement_character(texts: TextTokenizer) -> None:
    assert texts.ids("a\ud800b") == texts.ids("a\ufffdb")


def test_a_pair_of_surrogates_reads_as_its_character(texts: TextTokenizer) -> None:
    assert texts.ids(json.loads('"\\ud83d\\ude00"')) == texts.ids("\ud83d" + "\ude00") == texts.ids("😀")


def test_a_question_is_tokenised_with_its_type_and_a_space_before_each_option(texts: TextTokenizer) -> None:
    question = parse_questions({"q": {"type": "noul", "instructions": "angry?"}})[0]
    tokens = tokenize_question(texts, question)
    assert tokens.instruction == texts.ids("noul question: angry?")
    assert tokens.options == [texts.ids(f" {option}") for option in question.options]


def test_32_threads_tokenise_without_disturbing_each_other(texts: TextTokenizer) -> None:
    wanted = [f"refund invoice {i} " * (1 + i % 7) for i in range(256)]
    alone = [texts.ids(text) for text in wanted]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(texts.ids, wanted))
    assert together == alone
