"""What a question may be: every refusal names it, and what is accepted gets the texts that a checkpoint reads."""

import re
from types import MappingProxyType
from typing import Any

import pytest

from laya.questions import Question, check_state, check_states, parse_questions, state_text

CHOICE = {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "support"]}
SCORE = {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "today", "now"]}
NOUL = {"type": "noul", "instructions": "Is the customer angry?"}

CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


def one(definition: object, id_: object = "q") -> Question:
    return parse_questions({id_: definition})[0]


REFUSED: dict[str, tuple[object, object]] = {
    "id null": (None, CHOICE),
    "id a float": (1.5, CHOICE),
    "id a bool": (True, CHOICE),
    "id a tuple": (("a",), CHOICE),
    "id empty": ("", CHOICE),
    "id blank": (" \t\n", CHOICE),
    "definition null": ("q", None),
    "definition a string": ("q", "Which team?"),
    "definition a list": ("q", [CHOICE]),
    "type missing": ("q", {"instructions": "x", "criteria": ["a"]}),
    "type null": ("q", {**CHOICE, "type": None}),
    "type unknown": ("q", {**CHOICE, "type": "boolean"}),
    "type in another case": ("q", {**CHOICE, "type": "Choice"}),
    "type a list": ("q", {**CHOICE, "type": ["choice"]}),
    "instructions missing": ("q", {"type": "noul"}),
    "instructions null": ("q", {**NOUL, "instructions": None}),
    "instructions empty": ("q", {**NOUL, "instructions": ""}),
    "instructions blank": ("q", {**NOUL, "instructions": "  \n "}),
    "instructions an empty list": ("q", {**NOUL, "instructions": []}),
    "instructions an empty mapping": ("q", {**NOUL, "instructions": {}}),
    "instructions a number": ("q", {**NOUL, "instructions": 7}),
    "instructions a bool": ("q", {**NOUL, "instructions": True}),
    "instructions bytes": ("q", {**NOUL, "instructions": b"text"}),
    "instructions not JSON": ("q", {**NOUL, "instructions": {"x": object()}}),
    "instructions that hold themselves": ("q", {**NOUL, "instructions": CYCLE}),
    "choice without criteria": ("q", {"type": "choice", "instructions": "x"}),
    "choice criteria null": ("q", {**CHOICE, "criteria": None}),
    "choice criteria a string": ("q", {**CHOICE, "criteria": "billing"}),
    "choice criteria a set": ("q", {**CHOICE, "criteria": {"billing"}}),
    "choice criteria an empty list": ("q", {**CHOICE, "criteria": []}),
    "choice criteria an empty mapping": ("q", {**CHOICE, "criteria": {}}),
    "choice label null in a list": ("q", {**CHOICE, "criteria": ["a", None]}),
    "choice label null in a mapping": ("q", {**CHOICE, "criteria": {None: "x"}}),
    "choice label a mapping": ("q", {**CHOICE, "criteria": [{"label": "a"}]}),
    "choice label a list": ("q", {**CHOICE, "criteria": [["a"]]}),
    "choice label a tuple in a mapping": ("q", {**CHOICE, "criteria": {("a",): "x"}}),
    "choice label bytes": ("q", {**CHOICE, "criteria": [b"a"]}),
    "choice label twice": ("q", {**CHOICE, "criteria": ["a", "b", "a"]}),
    "choice labels 1 and 1.0": ("q", {**CHOICE, "criteria": [1, 1.0]}),
    "choice labels 1 and True": ("q", {**CHOICE, "criteria": [1, True]}),
    "choice labels 0 and False": ("q", {**CHOICE, "criteria": ["x", 0, False]}),
    "choice description not JSON": ("q", {**CHOICE, "criteria": {"a": object()}}),
    "score criteria missing": ("q", {"type": "score", "instructions": "x"}),
    "score criteria a mapping": ("q", {**SCORE, "criteria": {"0": "low"}}),
    "score criteria a string": ("q", {**SCORE, "criteria": "low"}),
    "score criteria a number": ("q", {**SCORE, "criteria": 5}),
    "score criteria empty": ("q", {**SCORE, "criteria": []}),
    "score level null": ("q", {**SCORE, "criteria": ["low", None]}),
    "score level not JSON": ("q", {**SCORE, "criteria": [{1, 2}]}),
    "noul criteria a list": ("q", {**NOUL, "criteria": ["no", "yes"]}),
    "noul criteria a string": ("q", {**NOUL, "criteria": "yes"}),
    "noul criteria with another key": ("q", {**NOUL, "criteria": {"true": "x", "maybe": "y"}}),
    "noul criteria with the key 1": ("q", {**NOUL, "criteria": {1: "x"}}),
    "noul criteria with a null key": ("q", {**NOUL, "criteria": {None: "x"}}),
    "noul criteria naming true twice": ("q", {**NOUL, "criteria": {"true": "x", "True": "y"}}),
    "labels on a choice": ("q", {**CHOICE, "labels": {"false": "a", "true": "b"}}),
    "labels on a score": ("q", {**SCORE, "labels": {"false": "a", "true": "b"}}),
    "labels a list": ("q", {**NOUL, "labels": ["no", "yes"]}),
    "labels empty": ("q", {**NOUL, "labels": {}}),
    "labels with only true": ("q", {**NOUL, "labels": {"true": "yes"}}),
    "labels with a third": ("q", {**NOUL, "labels": {"false": "a", "true": "b", "maybe": "c"}}),
    "labels that are equal": ("q", {**NOUL, "labels": {"false": "a", "true": "a"}}),
    "labels that are blank": ("q", {**NOUL, "labels": {"false": " ", "true": "a"}}),
    "labels that are no text": ("q", {**NOUL, "labels": {"false": 0, "true": 1}}),
    "order a string": ("q", {**CHOICE, "option_order": "01"}),
    "order empty": ("q", {**CHOICE, "option_order": []}),
    "order too short": ("q", {**CHOICE, "option_order": [0]}),
    "order too long": ("q", {**CHOICE, "option_order": [0, 1, 2]}),
    "order with a repeat": ("q", {**CHOICE, "option_order": [0, 0]}),
    "order counted from one": ("q", {**CHOICE, "option_order": [1, 2]}),
    "order of labels": ("q", {**CHOICE, "option_order": ["support", "billing"]}),
    "order of bools": ("q", {**CHOICE, "option_order": [False, True]}),
    "order of floats": ("q", {**CHOICE, "option_order": [0.0, 1.0]}),
    "order of three on a noul": ("q", {**NOUL, "option_order": [0, 1, 2]}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_question_is_a_value_error_that_names_it(case: str) -> None:
    id_, definition = REFUSED[case]
    with pytest.raises(ValueError, match=f"^{re.escape(f'question {id_!r}: ')}") as refusal:
        one(definition, id_)
    assert type(refusal.value) is ValueError


@pytest.mark.parametrize("questions", [None, [], [CHOICE], "choice", 3, ("q", CHOICE)])
def test_questions_that_are_no_mapping_are_a_type_error(questions: object) -> None:
    with pytest.raises(TypeError, match="questions must be a mapping"):
        parse_questions(questions)


def test_the_second_question_is_named_when_only_it_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"^question 'second': type must be one of choice, score, noul"):
        parse_questions({"first": CHOICE, "second": {**CHOICE, "type": "x"}})


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ValueError, match="type must be one of") as refusal:
        one({**CHOICE, "type": "x" * 10_000})
    assert len(str(refusal.value)) < 300


def test_no_questions_are_no_questions() -> None:
    assert parse_questions({}) == ()


def test_questions_keep_the_order_they_are_asked_in() -> None:
    asked = parse_questions({"z": NOUL, 7: SCORE, "a": CHOICE})
    assert [question.id for question in asked] == ["z", 7, "a"]
    assert [question.type_index for question in asked] == [2, 1, 0]


def test_any_mapping_will_do() -> None:
    question = parse_questions(MappingProxyType({"q": MappingProxyType(CHOICE)}))[0]
    assert question.options == ("billing", "support")


@pytest.mark.parametrize(
    ("instructions", "text"),
    [
        ("  as it stands ", "  as it stands "),
        ({"task": "prüfen", "n": 1}, '{"task": "prüfen", "n": 1}'),
        (["a", ["b"]], '["a", ["b"]]'),
        (("a", 1), '["a", 1]'),
    ],
)
def test_instructions_that_are_no_text_are_read_as_json(instructions: object, text: str) -> None:
    assert one({**NOUL, "instructions": instructions}).instructions == text


@pytest.mark.parametrize(
    ("description", "option"),
    [
        (None, "a"),
        ("", "a"),
        ("text", "a: text"),
        (" ", "a:  "),
        (0, "a: 0"),
        (False, "a: false"),
        ({"desc": "größer", "n": [1, 2]}, 'a: {"desc": "größer", "n": [1, 2]}'),
    ],
)
def test_a_choice_reads_its_label_and_then_its_description(description: object, option: str) -> None:
    question = one({**CHOICE, "criteria": {"a": description, "b": None}})
    assert question.options == (option, "b")
    assert question.descriptions == (option[3:], "")


def test_a_choice_answers_with_the_labels_as_they_were_given() -> None:
    question = one({**CHOICE, "criteria": [1, 2.5, "2.5", False]})
    assert question.labels == (1, 2.5, "2.5", False)
    assert question.options == ("1", "2.5", "2.5", "False")
    assert question.k == 4


def test_a_score_counts_its_levels_from_zero() -> None:
    question = one({**SCORE, "criteria": ["low", 1, {"level": "hoch"}, ""]})
    assert question.labels == (0, 1, 2, 3)
    assert question.options == ("level 0: low", "level 1: 1", 'level 2: {"level": "hoch"}', "level 3: ")
    assert question.legend == ("low", "1", '{"level": "hoch"}', "")


def test_a_noul_reads_false_first_with_words_of_its_own() -> None:
    assert one(NOUL).options == (
        "false: no, the statement does not hold",
        "true: yes, the statement holds",
    )
    assert one(NOUL).labels == (False, True)


@pytest.mark.parametrize(
    "criteria",
    [{"true": "angry"}, {"TRUE": "angry", "False": None}, {True: "angry", False: ""}],
)
def test_a_noul_takes_the_criteria_that_are_given_in_any_case(criteria: dict[Any, Any]) -> None:
    assert one({**NOUL, "criteria": criteria}).options == (
        "false: no, the statement does not hold",
        "true: angry",
    )


def test_a_nouls_labels_replace_the_words_before_the_colon() -> None:
    question = one({**NOUL, "labels": {"true": "A", "false": "B"}, "criteria": {"false": {"n": 1}}})
    assert question.options == ('B: {"n": 1}', "A: yes, the statement holds")


@pytest.mark.parametrize("definition", [CHOICE, SCORE, NOUL])
def test_null_labels_and_order_mean_none_are_given(definition: dict[str, Any]) -> None:
    question = one({**definition, "labels": None, "option_order": None})
    assert question.order is None


def test_an_order_is_kept_as_slot_to_option() -> None:
    assert one({**SCORE, "option_order": [2, 0, 1]}).order == (2, 0, 1)


@pytest.mark.parametrize(
    "states",
    ["one", b"one", bytearray(b"one"), {"text": "one"}, None, 3, iter(["one"]), {"one"}, ["one", None], (None,)],
)
def test_states_that_are_no_list_of_states_are_a_type_error(states: object) -> None:
    with pytest.raises(TypeError):
        check_states(states)


def test_a_list_or_tuple_of_states_passes() -> None:
    check_states(["text", 0, False, "", [], {}])
    check_states(())


def test_a_state_of_none_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must not be None"):
        check_state(None)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("", ""),
        ("größer", "größer"),
        ({"a": "ß", "b": [1, None]}, '{"a": "ß", "b": [1, null]}'),
        (2.5, "2.5"),
        (True, "true"),
    ],
)
def test_a_state_that_is_no_text_is_read_as_json(state: object, text: str) -> None:
    assert state_text(state) == text


@pytest.mark.parametrize("state", [object(), b"bytes", {"x": {1, 2}}, [object()]])
def test_a_state_that_is_not_json_is_a_type_error(state: object) -> None:
    with pytest.raises(TypeError, match="not JSON"):
        state_text(state)


def test_a_state_that_holds_itself_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        state_text(CYCLE)


def test_questions_that_differ_in_a_type_or_an_order_are_never_taken_for_each_other() -> None:
    alike: list[dict[Any, Any]] = [
        {"q": {**CHOICE, "criteria": criteria}}
        for criteria in ([1, 2], [True, 2], [1.0, 2], ["1", "2"], [2, 1], {1: "", 2: "two"})
    ]
    alike += [{1: CHOICE}, {"1": CHOICE}, {"q": CHOICE, "p": NOUL}, {"p": NOUL, "q": CHOICE}]
    first, again = (
        [str([(repr(one.id), repr(one.labels), one.options) for one in parse_questions(each)]) for each in alike]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == len(alike)


def test_questions_that_changed_are_read_anew() -> None:
    questions: dict[str, Any] = {"q": {**CHOICE, "criteria": ["billing", "support"]}}
    assert parse_questions(questions)[0].labels == ("billing", "support")
    questions["q"]["criteria"].append("sales")
    assert parse_questions(questions)[0].labels == ("billing", "support", "sales")
    questions["q"]["type"] = "nonsense"
    with pytest.raises(ValueError, match="type must be one of"):
        parse_questions(questions)
