"""What the page does not have: defer_load and prefer_resident, both off unless asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from laya import PredictContext, Router
from tests.lifecycle.recording import ANSWER, ENDS, QUESTIONS, STATE, At, Recorder, raising

MakeRouter = Callable[..., Router]
GERMAN = "Die Seite stürzt beim Anmelden ständig ab, bitte helfen Sie mir so schnell wie möglich."
PAIR = ["on_predict_start", "on_predict_end"]


def skip(ctx: PredictContext) -> None:
    ctx.skip(dict(ANSWER))


def requests(*states: Any, model: str = "english") -> list[dict[str, Any]]:
    return [{"state": state, "questions": QUESTIONS, "model": model} for state in states]


# --- as the page stands: both are off ---


def test_without_defer_load_a_hit_loads_its_checkpoint_before_the_start_hooks(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: router.loaded)
    router.predict(STATE, QUESTIONS, on_predict_start=skip, hooks=hook)
    assert hook.looked("on_predict_start") == [["english"]]


def test_without_prefer_resident_detection_goes_to_a_checkpoint_that_is_not_resident(make_router: MakeRouter) -> None:
    router = make_router()
    router.load("multilingual")
    assert router.route(STATE)["model"] == "english"


# --- defer_load ---


def test_with_defer_load_a_miss_loads_after_the_start_hooks(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(defer_load=True, hooks=hook)
    result = router.predict(STATE, QUESTIONS)
    assert hook.events == ["on_route", "on_predict_start", "on_load", "on_predict_end"]
    assert result["answers"]


def test_with_defer_load_the_agent_is_in_the_context_from_the_load_on(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: ctx.agent)
    router = make_router(defer_load=True)
    router.predict(STATE, QUESTIONS, hooks=hook)
    assert hook.looks[1:] == [("on_predict_start", None), ("on_predict_end", router.load("english"))]


def test_with_defer_load_a_hit_loads_nothing(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(defer_load=True, hooks=hook)
    assert router.predict(STATE, QUESTIONS, on_predict_start=skip)["routing"]["model"] == "english"
    assert hook.events == ["on_route", *PAIR]
    assert router.loaded == []


def test_with_defer_load_a_hit_evicts_nothing(make_router: MakeRouter) -> None:
    router = make_router(defer_load=True, max_loaded=1)
    router.load("multilingual")
    router.predict(STATE, QUESTIONS, model="english", on_predict_start=skip)
    assert router.loaded == ["multilingual"]


def test_with_defer_load_a_hit_is_served_although_its_checkpoint_cannot_be_loaded(make_router: MakeRouter) -> None:
    router = make_router(defer_load=True, models={"english": "/there/is/no/such/place"})
    assert router.predict(STATE, QUESTIONS, model="english", on_predict_start=skip)["answers"]


def test_with_defer_load_a_batch_of_hits_loads_nothing(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(defer_load=True, hooks=hook)
    results = router.predict_batch([*requests("a", "b"), *requests("c", model="ml")], on_predict_start=skip)
    assert [result["routing"]["model"] for result in results] == ["english", "english", "multilingual"]
    assert hook.seen("on_load") == []
    assert router.loaded == []


def test_with_defer_load_a_batch_with_a_miss_loads_that_checkpoint_only_and_after_all_starts(
    make_router: MakeRouter,
) -> None:
    hook = Recorder()
    router = make_router(defer_load=True, hooks=hook)
    hits = At("on_predict_start", lambda ctx: ctx.skip(dict(ANSWER)) if ctx.states != ["miss"] else None)
    router.predict_batch([*requests("a", model="ml"), *requests("b", "miss")], hooks=hits)
    assert hook.events[3:] == [*PAIR, "on_predict_start", "on_predict_start", "on_load", *["on_predict_end"] * 2]
    assert router.loaded == ["english"]


def test_with_defer_load_elapsed_ms_leaves_the_load_out(make_router: MakeRouter) -> None:
    moments: dict[str, float] = {}

    def at_load(ctx: PredictContext) -> None:
        time.sleep(0.3)  # what a slow load costs
        moments["loaded"] = time.perf_counter()

    def at_start(ctx: PredictContext) -> None:
        moments["started"] = time.perf_counter()

    def at_end(ctx: PredictContext) -> None:
        moments["whole"] = (time.perf_counter() - moments["started"]) * 1000
        assert ctx.elapsed_ms is not None
        moments["elapsed"] = ctx.elapsed_ms

    router = make_router(defer_load=True, hooks=At("on_load", at_load))
    for call in (
        lambda: router.predict(STATE, QUESTIONS, on_predict_start=at_start, on_predict_end=at_end),
        lambda: router.predict_batch(requests("a"), on_predict_start=at_start, on_predict_end=at_end),
    ):
        router.unload()
        call()
        assert 0 < moments["elapsed"] < moments["whole"] - 250


def test_with_defer_load_a_load_that_fails_fails_every_started_request_of_the_group(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(defer_load=True, models={"english": "/there/is/no/such/place"})
    with pytest.raises(FileNotFoundError):
        router.predict_batch(requests("a", "b"), hooks=hook)
    assert hook.events[2:] == ["on_predict_start", "on_predict_start", *ENDS, *ENDS]


def test_with_defer_load_a_refusing_start_hook_loads_nothing(make_router: MakeRouter) -> None:
    router = make_router(defer_load=True)
    with pytest.raises(PermissionError):
        router.predict(STATE, QUESTIONS, on_predict_start=raising(PermissionError()))
    assert router.loaded == []


def test_with_defer_load_the_answers_are_the_same(make_router: MakeRouter) -> None:
    batch = [*requests("a", "b"), *requests("c", model="ml")]
    assert make_router(defer_load=True).predict_batch(batch) == make_router().predict_batch(batch)


# --- prefer_resident ---


def test_with_prefer_resident_multilingual_stands_in_for_english_and_the_reason_says_so(
    make_router: MakeRouter,
) -> None:
    hook = Recorder()
    router = make_router(prefer_resident=True, hooks=hook)
    router.load("multilingual")
    result = router.predict(STATE, QUESTIONS)
    assert result["routing"]["model"] == "multilingual"
    assert result["routing"]["repo"] == router.models["multilingual"]
    assert "'english' is not resident" in result["routing"]["reason"]
    assert "'multilingual'" in result["routing"]["reason"]
    assert [ctx.model for ctx in hook.seen("on_load")] == ["multilingual"]


def test_with_prefer_resident_the_on_route_hook_sees_the_stand_in(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: ctx.decision and ctx.decision["model"])
    router = make_router(prefer_resident=True)
    router.load("multilingual")
    router.route(STATE, hooks=hook)
    assert hook.looked("on_route") == ["multilingual"]


def test_with_prefer_resident_english_is_used_where_it_is_resident(make_router: MakeRouter) -> None:
    router = make_router(prefer_resident=True)
    router.preload(["english", "multilingual"])
    decision = router.route(STATE)
    assert decision["model"] == "english"
    assert "resident" not in decision["reason"]


@pytest.mark.parametrize("resident", [[], ["typed-decisions"]], ids=["none", "typed-decisions"])
def test_with_prefer_resident_what_is_no_declared_stand_in_does_not_answer_for_english(
    make_router: MakeRouter, resident: list[str]
) -> None:
    router = make_router(prefer_resident=True)
    router.preload(resident)
    assert router.route(STATE)["model"] == "english"


def test_with_prefer_resident_nothing_stands_in_for_multilingual(make_router: MakeRouter) -> None:
    router = make_router(prefer_resident=True)
    router.preload(["english", "typed-decisions"])
    assert router.route(GERMAN)["model"] == "multilingual"


@pytest.mark.parametrize(
    ("wish", "model"),
    [
        ({"model": "english"}, "english"),
        ({"task": "typed_decisions"}, "typed-decisions"),
        ({"lang": "en"}, "english"),
        ({"lang_guess": "en"}, "english"),
        ({"lang_guess": lambda state: "en"}, "english"),
    ],
    ids=["model", "task", "lang", "lang_guess", "callable lang_guess"],
)
def test_with_prefer_resident_what_the_caller_chose_stands(
    make_router: MakeRouter, wish: dict[str, Any], model: str
) -> None:
    router = make_router(prefer_resident=True)
    router.load("multilingual")
    assert router.route(STATE, QUESTIONS, **wish)["model"] == model


def test_with_prefer_resident_the_router_s_own_lang_guess_stands(make_router: MakeRouter) -> None:
    router = make_router(prefer_resident=True, lang_guess="en")
    router.load("multilingual")
    assert router.route(STATE)["model"] == "english"


def test_with_prefer_resident_a_batch_uses_the_stand_in_for_each_request_that_has_no_wish(
    make_router: MakeRouter,
) -> None:
    router = make_router(prefer_resident=True)
    router.load("multilingual")
    free, wished = {"state": STATE, "questions": QUESTIONS}, requests(STATE)[0]
    results = router.predict_batch([free, wished])
    assert [result["routing"]["model"] for result in results] == ["multilingual", "english"]
