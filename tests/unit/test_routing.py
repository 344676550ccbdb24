"""Which checkpoint a request goes to, and in which order the wishes count."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya.catalog import canonical_name
from laya.routing import WORKFLOWS, RouteDecision, decide, names_english, workflow_of

ENGLISH_TEXT = "My order has not arrived yet, where is it?"
GERMAN_TEXT = "Meine Bestellung ist noch nicht angekommen, wo ist sie?"
CUSTOMER_SERVICE = dict.fromkeys(WORKFLOWS["customer_service"])


def known(*names: str) -> Callable[[str], str]:
    return lambda name: canonical_name(name, names)


# The wishes in the order in which they count, each with the checkpoint that it alone leads to. Neighbours lead
# to different ones, and so does what the state's text says.
WISHES: list[tuple[dict[str, Any], str]] = [
    ({"model": "papers"}, "papers"),
    ({"task": "typed_decisions"}, "typed-decisions"),
    ({"questions": CUSTOMER_SERVICE, "auto_task_detection": True}, "typed-decisions"),
    ({"lang": "en"}, "english"),
    ({"lang_guess": "de"}, "multilingual"),
    ({"router_lang_guess": lambda state: "en-US"}, "english"),
    ({"state": GERMAN_TEXT}, "multilingual"),
    ({"default": "papers"}, "papers"),
]
CANONICAL = known("english", "multilingual", "typed-decisions", "papers")


@given(st.lists(st.sampled_from(range(len(WISHES))), unique=True, min_size=1))
def test_the_first_wish_that_says_something_decides(which: list[int]) -> None:
    wishes: dict[str, Any] = {"state": "???", "default": "papers"}
    for place in which:
        wishes |= WISHES[place][0]
    decision = decide(**wishes, canonical=CANONICAL, repo_of=str)
    assert decision["model"] == WISHES[min(which)][1]


@given(
    st.lists(st.sampled_from(range(len(WISHES) - 1)), unique=True, min_size=1),
    st.sampled_from([None, "", " ", "C", "POSIX", "und", "zxx", "mul", "C.UTF-8"]),
)
def test_a_code_that_says_nothing_falls_through(which: list[int], code: str | None) -> None:
    wishes: dict[str, Any] = {"state": "???", "lang": code, "lang_guess": lambda state: code, "router_lang_guess": code}
    for place in which:
        wishes |= WISHES[place][0]
    decision = decide(**wishes, canonical=CANONICAL, repo_of=str)
    assert decision["model"] == WISHES[min(which)][1]


def test_what_stands_behind_the_deciding_wish_is_not_run() -> None:
    def guess(state: Any) -> str:
        raise AssertionError("asked although the caller named the checkpoint")

    assert decide("hello", model="ml", task="no such task", lang_guess=guess)["model"] == "multilingual"


@pytest.mark.parametrize(
    "code", ["en", "EN", "eng", "english", "en-US", "en_US.UTF-8", " en ", "En@euro", "en-GB,en;q=0.9"]
)
def test_a_code_names_english(code: str) -> None:
    assert names_english(code) is True
    assert decide(GERMAN_TEXT, lang=code)["model"] == "english"


@pytest.mark.parametrize(
    "code", ["de", "de-AT", "zh-Hant", "es_MX.UTF-8", "enm", "engb", "xx", "klingon", "日本語", "x-en"]
)
def test_any_other_code_means_multilingual(code: str) -> None:
    assert names_english(code) is False
    assert decide(ENGLISH_TEXT, lang=code)["model"] == "multilingual"


@pytest.mark.parametrize("code", ["", "  ", "C", "c.UTF-8", "POSIX", "und", "und-Latn", "zxx", "mul", "*"])
def test_a_code_says_nothing(code: str) -> None:
    assert names_english(code) is None
    assert decide(GERMAN_TEXT, lang=code)["detection"] is not None


@pytest.mark.parametrize("task", ["typed_decisions", "typed-decisions", " Typed_Decisions "])
def test_a_task_means_its_checkpoint(task: str) -> None:
    assert decide(ENGLISH_TEXT, task=task)["model"] == "typed-decisions"


@pytest.mark.parametrize("task", ["typed", "summarise", "", 5])
def test_an_unknown_task_is_refused_with_the_known_ones(task: Any) -> None:
    with pytest.raises(ValueError, match=r"typed-decisions.*typed_decisions") as refusal:
        decide(ENGLISH_TEXT, task=task)
    assert repr(task) in str(refusal.value)


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'frensh'.*'english', 'multilingual', 'typed-decisions'"):
        decide(ENGLISH_TEXT, model="frensh")


@pytest.mark.parametrize("wish", ["lang", "lang_guess", "router_lang_guess"])
def test_a_language_that_is_no_string_is_refused_by_name(wish: str) -> None:
    with pytest.raises(TypeError, match="lang"):
        decide(ENGLISH_TEXT, **{wish: 5})  # type: ignore[arg-type]


def test_a_guess_is_asked_with_the_state() -> None:
    seen: list[Any] = []
    state = {"text": ENGLISH_TEXT}
    decision = decide(state, lang_guess=lambda given: seen.append(given) or "de")
    assert (seen, decision["model"]) == ([state], "multilingual")


def test_what_a_guess_raises_is_the_callers_to_see() -> None:
    def guess(state: Any) -> str:
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table"):
        decide(ENGLISH_TEXT, lang_guess=guess)


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS))
def test_a_workflow_is_known_by_its_question_ids(workflow: str) -> None:
    decision = decide(GERMAN_TEXT, dict.fromkeys(WORKFLOWS[workflow]), auto_task_detection=True)
    assert (decision["model"], decision["workflow"], decision["detection"]) == ("typed-decisions", workflow, None)


def test_a_workflow_counts_only_when_asked_for() -> None:
    decision = decide(GERMAN_TEXT, CUSTOMER_SERVICE)
    assert (decision["model"], decision["workflow"]) == ("multilingual", None)


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS))
def test_one_question_more_or_less_is_no_workflow(workflow: str) -> None:
    ids = WORKFLOWS[workflow]
    fewer = [ids - {one} for one in ids]
    assert not any(workflow_of(dict.fromkeys(some)) for some in [*fewer, ids | {"one_more"}])


def test_no_two_workflows_share_their_questions() -> None:
    assert not any(one == other for one, other in itertools.combinations(WORKFLOWS.values(), 2))


@pytest.mark.parametrize("questions", [None, [], "urgency", 5, {}])
def test_what_is_no_mapping_of_questions_is_no_workflow(questions: Any) -> None:
    assert decide(GERMAN_TEXT, questions, auto_task_detection=True)["workflow"] is None


def test_undecided_text_goes_to_the_default() -> None:
    models = [decide("ok 👌", default=name)["model"] for name in ("english", "multilingual")]
    assert models == ["english", "multilingual"]


def test_english_text_goes_to_english_whatever_the_default() -> None:
    assert decide(ENGLISH_TEXT, default="typed-decisions")["model"] == "english"


def test_other_text_goes_to_multilingual_whatever_the_default() -> None:
    assert decide(GERMAN_TEXT, default="english")["model"] == "multilingual"


@pytest.mark.parametrize(
    "wishes",
    [{"state": ENGLISH_TEXT}, {"lang": "en"}, {"questions": CUSTOMER_SERVICE, "auto_task_detection": True}],
    ids=["detection", "lang", "workflow"],
)
def test_a_checkpoint_that_is_not_registered_gives_way_to_the_default(wishes: dict[str, Any]) -> None:
    decision = decide(**{"state": "???", **wishes}, canonical=known("multilingual"), repo_of=str)
    assert decision["model"] == "multilingual"
    assert "is registered" in decision["reason"]


def test_a_default_that_is_not_registered_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'multilingual'.*'papers'"):
        decide("ok", canonical=known("papers"), repo_of=str)


def test_an_alias_is_answered_with_the_registered_name() -> None:
    assert decide(ENGLISH_TEXT, model=" ML ")["model"] == "multilingual"


def test_the_place_is_asked_by_the_registered_name() -> None:
    assert decide(ENGLISH_TEXT, model="en", repo_of=lambda name: f"/models/{name}")["repo"] == "/models/english"


def test_the_built_in_place_names_repository_and_subfolder() -> None:
    assert decide(ENGLISH_TEXT, model="ml")["repo"] == "convaiinnovations/laya/multilingual"


DECISIONS = [
    decide(ENGLISH_TEXT),
    decide(GERMAN_TEXT),
    decide(f"{ENGLISH_TEXT}\n{GERMAN_TEXT}"),
    decide("अपना ऑर्डर"),
    decide("ok"),
    decide(5),
    decide(ENGLISH_TEXT, model="ml"),
    decide(ENGLISH_TEXT, task="typed_decisions"),
    decide(ENGLISH_TEXT, lang="de"),
    decide(ENGLISH_TEXT, lang_guess="en"),
    decide(ENGLISH_TEXT, CUSTOMER_SERVICE, auto_task_detection=True),
]


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_is_a_mapping_that_can_be_written_as_json(decision: RouteDecision) -> None:
    assert json.loads(json.dumps(decision)) == decision
    assert list(decision) == ["model", "repo", "reason", "detection", "workflow"]


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_reason_is_one_sentence_without_the_states_text(decision: RouteDecision) -> None:
    reason = decision["reason"]
    assert reason.endswith(".")
    assert ". " not in reason
    assert not any(word in reason for word in ("arrived", "Bestellung", "ऑर्डर"))


def test_reasons_of_different_origin_differ() -> None:
    assert len({decision["reason"] for decision in DECISIONS}) == len(DECISIONS) - 1  # "ok" and 5 are both undecided


@pytest.mark.parametrize("wish", [{"model": "ml"}, {"task": "typed_decisions"}, {"lang": "de"}, {"lang_guess": "en"}])
def test_detection_is_null_when_it_did_not_run(wish: dict[str, Any]) -> None:
    assert decide(ENGLISH_TEXT, **wish)["detection"] is None
