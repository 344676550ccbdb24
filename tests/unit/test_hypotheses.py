"""Which texts an embedding checkpoint compares: those of a state, and those that stand for an option."""

from __future__ import annotations

from typing import Any

import pytest

from laya.hypotheses import COUNTER, Hypothesis, hypotheses, phrases, readable
from laya.questions import parse_questions


def options_of(definition: dict[str, Any]) -> tuple[Hypothesis, ...]:
    (question,) = parse_questions({"q": definition})
    return hypotheses(question)


def texts_of(hypothesis: Hypothesis) -> list[str]:
    return [text for text, _ in hypothesis.texts]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("a text\nas it stands", "a text\nas it stands"),
        ({"subject": "Late parcel", "order": 77120, "open": True, "body": "Where is it?"}, "Late parcel\nWhere is it?"),
        ({"customer": {"name": "Anna"}, "lines": ["one", "two"]}, "Anna\none\ntwo"),
        ([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}], "Hello\nGood day"),
        ({"role": "manager", "name": "Ann"}, "manager\nAnn"),
        ({"amount": 12.5, "paid": False}, '{"amount": 12.5, "paid": false}'),
        ({"comment": "  "}, '{"comment": "  "}'),
        ([], "[]"),
        (7, "7"),
    ],
)
def test_a_state_reads_as_its_string_values_and_else_as_json(state: object, text: str) -> None:
    assert readable(state) == text


@pytest.mark.parametrize("state", [None, {1, 2}, {"a": object()}])
def test_a_state_that_is_not_json_is_refused_although_its_strings_could_be_read(state: object) -> None:
    with pytest.raises(TypeError):
        readable(state)


def test_a_state_that_holds_itself_is_refused() -> None:
    state: list[Any] = ["text"]
    state.append(state)
    with pytest.raises(ValueError, match="not JSON"):
        readable(state)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("invoices, charges and refunds", ["invoices", "charges", "refunds"]),
        ("Rechnungen und Mahnungen; Storno", ["Rechnungen", "Mahnungen", "Storno"]),
        ("発送、追跡。破損", ["発送", "追跡", "破損"]),
        ("one thing", ["one thing"]),
        ("android or landing", ["android", "landing"]),
        ("...", ["..."]),
        ("", [""]),
    ],
)
def test_a_description_falls_into_its_phrases(text: str, parts: list[str]) -> None:
    assert phrases(text) == parts


def test_a_described_option_stands_for_itself_and_for_each_phrase_of_its_description() -> None:
    billing, _ = options_of(
        {"type": "choice", "instructions": "Who?", "criteria": {"billing": "invoices, charges", "other": "the rest"}}
    )
    assert texts_of(billing) == ["billing: invoices, charges", "invoices", "charges"]
    _, *phrase_weights = (weight for _, weight in billing.texts)
    assert sum(phrase_weights) == pytest.approx(2.0)


def test_a_bare_label_is_read_in_the_context_of_its_instructions_too() -> None:
    first, _ = options_of({"type": "choice", "instructions": "Who answers?", "criteria": ["billing", "sales"]})
    assert texts_of(first) == ["billing", "Who answers? billing"]


def test_levels_are_their_texts_without_their_numbers() -> None:
    low, high = options_of({"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "critical"]})
    assert texts_of(low) == ["can wait", "How urgent? can wait"]
    assert texts_of(high) == ["critical", "How urgent? critical"]


def test_a_noul_without_criteria_is_true_where_its_statement_is_near_and_false_by_default() -> None:
    false, true = options_of({"type": "noul", "instructions": "The customer is angry."})
    assert texts_of(true) == ["The customer is angry."]
    assert false.texts == ()
    assert (false.by_default, true.by_default) == (True, False)


def test_a_noul_with_criteria_weighs_one_against_the_other() -> None:
    false, true = options_of(
        {"type": "noul", "instructions": "Refund?", "criteria": {"true": "wants money back", "false": "asks how"}}
    )
    assert texts_of(true) == ["wants money back", "wants money back", "Refund?"]
    assert texts_of(false) == ["asks how", "asks how"]
    assert (false.gain, true.gain) == (COUNTER, 1.0)


@pytest.mark.parametrize(
    ("criteria", "false_texts", "true_texts"),
    [
        ({}, ["ham"], ["spam", "Spam?"]),
        ({"true": "an advertisement"}, ["ham"], ["spam: an advertisement", "an advertisement", "Spam?"]),
        ({"false": "a letter"}, ["ham: a letter", "a letter"], ["spam", "Spam?"]),
    ],
)
def test_the_words_of_a_noul_count_where_a_caller_chose_them(
    criteria: dict[str, str], false_texts: list[str], true_texts: list[str]
) -> None:
    false, true = options_of(
        {
            "type": "noul",
            "instructions": "Spam?",
            "criteria": criteria,
            "labels": {"false": "ham", "true": "spam"},
        }
    )
    assert texts_of(false) == false_texts
    assert texts_of(true) == true_texts
