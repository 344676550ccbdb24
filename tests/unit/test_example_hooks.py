"""The hooks in `examples/hooks`: each does what it says, with a real checkpoint, and runs as a script as it stands."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from laya import Agent, BaseHook, PredictContext, Router

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "hooks").glob("*.py"))
GOLDEN = ROOT / "tests" / "data" / "golden" / "checkpoints"

QUESTIONS: dict[str, Any] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "money", "support": "the rest"}}
}
STATE = "I was charged twice, please refund the second payment."


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def agent() -> Agent:
    return Agent(str(GOLDEN / "multilingual"), device="cpu")


@pytest.fixture
def router(agent: Agent) -> Router:
    """A Router with one Agent under two names; `calls` of it counts what reaches the Agent."""
    router = Router(models={}, device="cpu")
    router.attach("multilingual", agent)
    router.attach("typed-decisions", agent)
    return router


class Passes(BaseHook):
    """Counts the states that reach an Agent and are computed there."""

    def __init__(self) -> None:
        self.states: list[Any] = []

    def on_predict_end(self, ctx: PredictContext) -> None:
        self.states += ctx.states


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs_as_it_stands(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_takes_a_checkpoint_of_the_caller_s(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = GOLDEN if path.name == "pin.py" else GOLDEN / "typed-decisions"
    monkeypatch.setattr(sys, "argv", [str(path), str(given)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_examples_are_those_that_the_pages_name() -> None:
    assert [path.stem for path in EXAMPLES] == ["audit", "budget", "cache", "pin", "redact", "trace"]


# --- cache ---


def test_the_second_of_two_equal_calls_is_a_hit_with_the_same_result(agent: Agent) -> None:
    cache = example("cache").Cache()
    first, second = (agent.predict(STATE, QUESTIONS, hooks=cache) for _ in range(2))
    assert (cache.hits, len(cache)) == (1, 1)
    assert first == second == agent.predict(STATE, QUESTIONS)


def test_a_hit_is_not_computed(router: Router, agent: Agent) -> None:
    cache, passes = example("cache").Cache(), Passes()
    with agent.hooks_installed(passes):
        for _ in range(3):
            router.predict(STATE, QUESTIONS, model="multilingual", hooks=cache)
    assert passes.states == [STATE]


def test_a_hit_is_a_copy_that_its_caller_may_change(agent: Agent) -> None:
    cache = example("cache").Cache()
    want = agent.predict(STATE, QUESTIONS)
    for _ in range(3):
        result = agent.predict(STATE, QUESTIONS, hooks=cache)
        assert result == want
        result["answers"]["team"]["choice"] = "spoilt"
        result["answers"]["more"] = result["usage"] = {}


def test_the_cache_keeps_neither_routing_nor_gate_fields(router: Router) -> None:
    cache = example("cache").Cache()
    options: dict[str, Any] = {"model": "multilingual", "hooks": cache}
    judged = router.predict(STATE, QUESTIONS, min_confidence=1.0, **options)
    assert judged["answers"]["team"]["low_confidence"] is True
    plain = router.predict(STATE, QUESTIONS, **options)
    assert cache.hits == 1
    assert not {"low_confidence", "abstention", "abstention_threshold"} & set(plain["answers"]["team"])
    assert plain["routing"] == router.route(STATE, QUESTIONS, model="multilingual")
    again = router.predict(STATE, QUESTIONS, min_confidence=0.0, **options)
    assert again["answers"]["team"]["abstention"] == "passed"
    (kept,) = cache._kept.values()
    assert set(kept[0]) == {"model", "answers", "usage"}


def test_the_cache_never_keeps_an_error(agent: Agent) -> None:
    cache = example("cache").Cache()

    def fail(ctx: PredictContext) -> None:
        raise ConnectionError("for a moment")

    with pytest.raises(ConnectionError):
        agent.predict(STATE, QUESTIONS, hooks=cache, on_predict_start=fail)
    with pytest.raises(ValueError, match="question"):
        agent.predict(STATE, {"q": {}}, hooks=cache)
    assert len(cache) == 0
    assert agent.predict(STATE, QUESTIONS, hooks=cache) == agent.predict(STATE, QUESTIONS)


def test_the_cache_does_not_keep_a_hit_of_a_group_that_failed(router: Router) -> None:
    cache = example("cache").Cache()
    asked: list[dict[str, Any]] = [QUESTIONS, {"q": {}}]
    requests = [{"state": STATE, "questions": questions, "model": "ml"} for questions in asked]
    with pytest.raises(ValueError, match="question"):
        router.predict_batch(requests, hooks=cache)
    assert len(cache) == 0


def test_the_cache_forgets_what_was_not_asked_for_the_longest_time(agent: Agent) -> None:
    cache = example("cache").Cache(size=2)
    for state in ("a", "b", "a", "c", "a", "b"):
        agent.predict(state, QUESTIONS, hooks=cache)
        assert len(cache) <= 2
    assert cache.hits == 2, "a twice; b had to go when c came"


DIFFERENT: dict[str, Callable[[], dict[str, Any]]] = {
    "state": lambda: {"state": STATE + "!"},
    "type of the state": lambda: {"state": [STATE]},
    "order of the state": lambda: {"state": {"b": 1, "a": 2}},
    "order of options": lambda: {
        "questions": {"team": QUESTIONS["team"] | {"criteria": {"support": "the rest", "billing": "money"}}}
    },
    "labels": lambda: {"questions": {"team": QUESTIONS["team"] | {"criteria": {1: "money", 2: "the rest"}}}},
    "labels as texts": lambda: {
        "questions": {"team": QUESTIONS["team"] | {"criteria": {"1": "money", "2": "the rest"}}}
    },
    "max_len": lambda: {"max_len": 100},
    "head_max_len": lambda: {"head_max_len": 100},
    "checkpoint": lambda: {"model": "typed"},
}


def test_calls_that_differ_in_one_thing_share_no_entry(router: Router) -> None:
    cache = example("cache").Cache()
    base: dict[str, Any] = {"state": STATE, "questions": QUESTIONS, "model": "multilingual"}
    calls = [base, base | {"state": {"a": 2, "b": 1}}, *(base | make() for make in DIFFERENT.values())]
    for call in calls:
        router.predict(**call, hooks=cache)
    assert (cache.hits, len(cache)) == (0, len(calls))


def test_the_cache_serves_the_states_of_a_batch_together(agent: Agent) -> None:
    cache = example("cache").Cache()
    first, second = (agent.predict_batch(["a", "b"], QUESTIONS, hooks=cache) for _ in range(2))
    assert first == second
    assert cache.hits == 1


def test_many_threads_may_share_the_cache(agent: Agent) -> None:
    cache = example("cache").Cache(size=4)
    want = [agent.predict(f"{n % 6}", QUESTIONS) for n in range(32)]
    barrier = threading.Barrier(16)

    def ask(n: int) -> dict[str, Any]:
        if n < 16:
            barrier.wait(20)
        return agent.predict(f"{n % 6}", QUESTIONS, hooks=cache)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(32))) == want
    assert len(cache) <= 4


# --- the others ---


def test_redaction_reaches_every_text_and_number_and_leaves_the_caller_s_state_as_it_is(agent: Agent) -> None:
    seen: list[Any] = []
    state = {"from": "jo@example.org", "turns": ["call 0171 555 00 12", {"card": 4111111111111111}], "n": 3, "ok": True}
    given = json.dumps(state)
    agent.predict(
        state, QUESTIONS, hooks=example("redact").Redact(), on_predict_start=lambda ctx: seen.extend(ctx.states)
    )
    assert seen == [{"from": "[mail]", "turns": ["call [number]", {"card": "[number]"}], "n": 3, "ok": True}]
    assert json.dumps(state) == given


def test_redaction_fails_closed_under_a_call_that_fails_open(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("redact")
    monkeypatch.setattr(module, "redacted", lambda value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        agent.predict(STATE, QUESTIONS, hooks=module.Redact(), hooks_raise=False)


def test_redaction_leaves_what_is_not_a_list_of_states_to_be_refused(agent: Agent) -> None:
    with pytest.raises(TypeError, match="list of states"):
        agent.predict_batch(STATE, QUESTIONS, hooks=example("redact").Redact())


def test_the_audit_log_tells_answered_empty_and_failed_calls_apart_and_holds_no_state(agent: Agent) -> None:
    lines: list[str] = []
    audit = example("audit").Audit(lines.append)
    agent.predict(STATE, QUESTIONS, hooks=audit)
    agent.predict_batch([], QUESTIONS, hooks=audit)
    with pytest.raises(ValueError, match="question"):
        agent.predict(STATE, {"q": {}}, hooks=audit)
    entries = [json.loads(line) for line in lines]
    assert [entry["outcome"] for entry in entries] == ["answered", "empty", "ValueError"]
    assert [entry["usage"] is None for entry in entries] == [False, False, True]
    assert len({entry["run_id"] for entry in entries}) == 3
    assert STATE not in "".join(lines)


def test_an_audit_log_that_cannot_be_written_warns_and_the_answer_is_given(agent: Agent) -> None:
    def full(line: str) -> None:
        raise OSError("disk full")

    with pytest.warns(RuntimeWarning, match="disk full"):
        assert agent.predict(STATE, QUESTIONS, hooks=example("audit").Audit(full))


def test_the_trace_is_open_inside_a_call_nested_calls_included_and_closed_after_it(
    agent: Agent, router: Router
) -> None:
    module = example("trace")
    seen: list[tuple[str, ...]] = []
    router.add_hook(module.Trace("router"))
    with agent.hooks_installed(module.Trace("agent")), agent.hooks_installed(look := BaseHook()):
        look.on_predict_start = lambda ctx: seen.append(module.path.get())  # type: ignore[method-assign]
        router.predict_batch([{"state": state, "questions": QUESTIONS, "model": "ml"} for state in "ab"])
    assert [[entry.split(":")[0] for entry in path] for path in seen] == [["router", "router", "agent"]]
    assert module.path.get() == ()


def test_the_trace_closes_after_a_failure_also_when_it_was_never_opened(agent: Agent) -> None:
    module = example("trace")

    def refuse(ctx: PredictContext) -> None:
        raise PermissionError

    early = BaseHook()
    early.on_predict_start = refuse  # type: ignore[method-assign]
    for hooks in ([early, module.Trace("t")], [module.Trace("t"), early]):
        with pytest.raises(PermissionError) as caught:
            agent.predict(STATE, QUESTIONS, hooks=hooks)
        assert not hasattr(caught.value, "__notes__"), "the trace must not fail on the way out"
    assert module.path.get() == ()


def test_a_pinned_request_goes_to_its_checkpoint_and_the_others_go_their_way(router: Router) -> None:
    router.add_hook(example("pin").Pin("customer", {"acme": "typed"}))
    requests = [
        {"state": {"customer": customer, "text": STATE}, "questions": QUESTIONS, "model": "multilingual"}
        for customer in ("acme", "other", ["acme"])
    ]
    routings = [result["routing"] for result in router.predict_batch([*requests, requests[0] | {"state": STATE}])]
    assert [routing["model"] for routing in routings] == ["typed", "multilingual", "multilingual", "multilingual"]
    assert "acme" in routings[0]["reason"]


@pytest.mark.parametrize(("asked", "read"), [(None, 100), (500, 100), (60, 60)])
def test_the_budget_is_a_cap(agent: Agent, asked: int | None, read: int) -> None:
    hooked = agent.predict(STATE * 30, QUESTIONS, max_len=asked, hooks=example("budget").Budget(100))
    assert hooked == agent.predict(STATE * 30, QUESTIONS, max_len=read)
