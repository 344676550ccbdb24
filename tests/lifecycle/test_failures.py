"""What a failure does: to the call, to its hooks, to the other requests of its group, and what it never hides."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from laya import Agent, PredictContext, Router
from tests.lifecycle.recording import ANSWER, ENDS, QUESTIONS, STATE, At, Recorder, raising, watch

MakeRouter = Callable[..., Router]
MakeAgent = Callable[..., Agent]

# What ends a process or a thread counts as well as what is merely wrong.
FAILURES = [ValueError("wrong"), KeyboardInterrupt("Ctrl-C"), SystemExit(3), MemoryError("full")]
EACH_FAILURE = pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)


def request(state: Any, model: str = "english", **more: Any) -> dict[str, Any]:
    return {"state": state, "questions": QUESTIONS, "model": model, **more}


def refuse(state: str, error: BaseException) -> At:
    """A hook that refuses the request of one state."""

    def on_predict_start(ctx: PredictContext) -> None:
        if ctx.states == [state]:
            raise error

    return At("on_predict_start", on_predict_start)


# --- one call ---


@EACH_FAILURE
@pytest.mark.parametrize("where", ["start hook", "forward pass"])
def test_any_base_exception_sets_ctx_error_fires_on_error_then_on_predict_end_and_is_raised_again(
    make_agent: MakeAgent, error: BaseException, where: str
) -> None:
    agent = make_agent()
    hook = Recorder(look=lambda ctx: ctx.error)
    if where == "forward pass":
        watch(agent, before_forward=lambda: raising(error)(None))  # type: ignore[arg-type]
    hooks = [hook, At("on_predict_start", raising(error))] if where == "start hook" else [hook]
    with pytest.raises(type(error)) as caught:
        agent.predict(STATE, QUESTIONS, hooks=hooks)
    assert caught.value is error
    assert hook.looks == [("on_predict_start", None), ("on_error", error), ("on_predict_end", error)]


@EACH_FAILURE
def test_any_base_exception_takes_the_same_way_through_a_router(make_router: MakeRouter, error: BaseException) -> None:
    hook = Recorder(look=lambda ctx: ctx.error)
    router = make_router()
    watch(router.load("english"), before_forward=lambda: raising(error)(None))  # type: ignore[arg-type]
    with pytest.raises(type(error)) as caught:
        router.predict(STATE, QUESTIONS, model="english", hooks=hook)
    assert caught.value is error
    assert hook.looks[-2:] == [("on_error", error), ("on_predict_end", error)]


@EACH_FAILURE
@pytest.mark.parametrize("event", ENDS)
def test_a_failing_hook_on_the_error_path_hides_nothing(agent: Agent, event: str, error: BaseException) -> None:
    cause = LookupError("the cause")
    after = Recorder()
    with pytest.raises(LookupError) as caught:
        agent.predict(STATE, QUESTIONS, on_predict_start=raising(cause), hooks=[At(event, raising(error)), after])
    assert caught.value is cause
    assert after.events == ["on_predict_start", *ENDS], "the hooks after the failing one must still run"
    assert any(type(error).__name__ in note for note in cause.__notes__), "the second failure must be found somewhere"


def test_an_end_hook_that_raises_fails_a_call_that_had_succeeded_after_all_end_hooks_have_run(agent: Agent) -> None:
    first, second, hook = PermissionError("first"), ValueError("second"), Recorder()
    hooks = [At("on_predict_end", raising(first)), At("on_predict_end", raising(second)), hook]
    with pytest.raises(PermissionError) as caught:
        agent.predict(STATE, QUESTIONS, hooks=hooks)
    assert caught.value is first
    assert hook.events == ["on_predict_start", "on_predict_end"], "on_error is for what failed before the end"


def test_the_next_call_is_not_touched_by_a_failed_one(agent: Agent) -> None:
    want = agent.predict(STATE, QUESTIONS)
    with pytest.raises(KeyboardInterrupt):
        agent.predict(STATE, QUESTIONS, on_predict_start=raising(KeyboardInterrupt()))
    assert agent.predict(STATE, QUESTIONS) == want


# --- whose failure counts: hooks_raise and raise_errors ---


def test_with_hooks_raise_false_a_failing_hook_becomes_a_warning_and_the_rest_go_on(agent: Agent) -> None:
    after = Recorder()
    hooks = [At("on_predict_start", raising(ConnectionError("down"))), after]
    with pytest.warns(RuntimeWarning, match=r"At\.on_predict_start failed: ConnectionError\('down'\)"):
        result = agent.predict(STATE, QUESTIONS, hooks=hooks, hooks_raise=False)
    assert after.events == ["on_predict_start", "on_predict_end"]
    assert result == agent.predict(STATE, QUESTIONS)


def test_with_hooks_raise_false_a_failing_end_hook_becomes_a_warning_too(agent: Agent) -> None:
    with pytest.warns(RuntimeWarning, match="full disk"):
        assert agent.predict(STATE, QUESTIONS, on_predict_end=raising(OSError("full disk")), hooks_raise=False)


def test_with_hooks_raise_false_the_call_s_own_failure_is_still_raised(agent: Agent) -> None:
    with pytest.warns(RuntimeWarning, match="telemetry"), pytest.raises(ValueError, match="question"):
        agent.predict(STATE, {"q": {}}, hooks=At("on_error", raising(OSError("telemetry"))), hooks_raise=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=lambda error: type(error).__name__)
def test_hooks_raise_false_does_not_swallow_what_ends_the_process(agent: Agent, error: BaseException) -> None:
    with pytest.raises(type(error)):
        agent.predict(STATE, QUESTIONS, on_predict_start=raising(error), hooks_raise=False)


@pytest.mark.parametrize(("own", "of_call"), [(False, None), (False, True), (None, False)])
def test_the_call_s_policy_goes_before_the_agent_s(make_agent: MakeAgent, own: bool | None, of_call: Any) -> None:
    agent = make_agent(**({} if own is None else {"hooks_raise": own}))
    warns = (own if of_call is None else of_call) is False
    failing = raising(ConnectionError("down"))
    if warns:
        with pytest.warns(RuntimeWarning, match="down"):
            agent.predict(STATE, QUESTIONS, on_predict_start=failing, hooks_raise=of_call)
    else:
        with pytest.raises(ConnectionError):
            agent.predict(STATE, QUESTIONS, on_predict_start=failing, hooks_raise=of_call)


def hook_with(raise_errors: bool | None, error: Exception) -> At:
    hook = At("on_predict_start", raising(error))
    hook.raise_errors = raise_errors  # type: ignore[attr-defined]
    return hook


@pytest.mark.parametrize("hooks_raise", [True, False])
def test_a_hook_that_says_raise_errors_false_warns_whatever_the_call_s_policy(agent: Agent, hooks_raise: bool) -> None:
    with pytest.warns(RuntimeWarning, match="telemetry"):
        agent.predict(STATE, QUESTIONS, hooks=hook_with(False, OSError("telemetry")), hooks_raise=hooks_raise)


@pytest.mark.parametrize("hooks_raise", [True, False])
def test_a_hook_that_says_raise_errors_true_refuses_whatever_the_call_s_policy(agent: Agent, hooks_raise: bool) -> None:
    with pytest.raises(PermissionError):
        agent.predict(STATE, QUESTIONS, hooks=hook_with(True, PermissionError()), hooks_raise=hooks_raise)


def test_a_hook_that_says_raise_errors_none_follows_the_call(agent: Agent) -> None:
    with pytest.raises(OSError, match="x"):
        agent.predict(STATE, QUESTIONS, hooks=hook_with(None, OSError("x")))
    with pytest.warns(RuntimeWarning, match="x"):
        agent.predict(STATE, QUESTIONS, hooks=hook_with(None, OSError("x")), hooks_raise=False)


def test_telemetry_warns_while_a_policy_hook_in_the_same_call_still_refuses(agent: Agent) -> None:
    hooks = [hook_with(False, OSError("telemetry")), hook_with(None, PermissionError("policy"))]
    with pytest.warns(RuntimeWarning, match="telemetry"), pytest.raises(PermissionError, match="policy"):
        agent.predict(STATE, QUESTIONS, hooks=hooks)


# --- one group of Router.predict_batch ---


@EACH_FAILURE
def test_a_start_hook_that_raises_fails_every_started_request_of_its_group_in_reverse_order(
    make_router: MakeRouter, error: BaseException
) -> None:
    hook = Recorder(look=lambda ctx: (ctx.states[0], ctx.error))
    with pytest.raises(type(error)) as caught:
        make_router().predict_batch([request(state) for state in "abcd"], hooks=[hook, refuse("c", error)])
    assert caught.value is error
    assert hook.looks[4:] == [
        *(("on_predict_start", (state, None)) for state in "abc"),
        *((event, (state, error)) for state in "cba" for event in ENDS),
    ]


def test_a_failing_group_includes_a_hit_and_a_request_whose_pass_had_already_run(make_router: MakeRouter) -> None:
    def skip_hit(ctx: PredictContext) -> None:
        if ctx.states == ["hit"]:
            ctx.skip(dict(ANSWER))

    hook = Recorder(look=lambda ctx: (ctx.states[0], type(ctx.error), ctx.usage is not None))
    broken = request("broken") | {"questions": {"q": {}}}
    with pytest.raises(ValueError, match="question 'q'"):
        make_router().predict_batch(
            [request("hit"), request("inferred"), broken], hooks=hook, on_predict_start=skip_hit
        )
    assert [found for event, found in hook.looks if event == "on_error"] == [
        ("broken", ValueError, False),
        ("inferred", ValueError, False),
        ("hit", ValueError, False),
    ]
    assert hook.looked("on_predict_end") == [
        ("broken", ValueError, False),
        ("inferred", ValueError, True),
        ("hit", ValueError, True),
    ]


def test_every_request_of_a_failing_group_has_the_same_error_in_its_own_context(make_router: MakeRouter) -> None:
    error = PermissionError("for b only")
    hook = Recorder()
    with pytest.raises(PermissionError):
        make_router().predict_batch([request("a"), request("b")], hooks=[hook, refuse("b", error)])
    failed = hook.seen("on_error")
    assert [ctx.error for ctx in failed] == [error, error]
    assert failed[0] is not failed[1]


def test_groups_that_had_finished_have_ended_with_their_results(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (ctx.states[0], ctx.error is None, ctx.results is not None))
    with pytest.raises(PermissionError):
        make_router().predict_batch(
            [request("a"), request("b", "ml"), request("c")], hooks=[hook, refuse("b", PermissionError())]
        )
    assert hook.looked("on_predict_end") == [("c", True, True), ("a", True, True), ("b", False, False)]
    assert hook.looked("on_error") == [("b", False, False)]


def test_groups_after_a_failing_one_are_not_begun(make_router: MakeRouter) -> None:
    router, hook = make_router(), Recorder()
    with pytest.raises(PermissionError):
        router.predict_batch([request("a"), request("b", "ml")], hooks=[hook, refuse("a", PermissionError())])
    assert [ctx.states for ctx in hook.seen("on_predict_start")] == [["a"]]
    assert router.loaded == ["english"]


@pytest.mark.parametrize("event", ENDS)
def test_a_failing_hook_on_a_group_s_error_path_keeps_no_request_from_its_end(
    make_router: MakeRouter, event: str
) -> None:
    hook = Recorder()
    hooks = [At(event, raising(ValueError("second"))), hook, refuse("c", PermissionError("first"))]
    with pytest.raises(PermissionError, match="first"):
        make_router().predict_batch([request(state) for state in "abc"], hooks=hooks)
    assert hook.events[6:] == ENDS * 3


def test_every_started_request_gets_exactly_one_end_although_the_end_hooks_of_others_raise(
    make_router: MakeRouter,
) -> None:
    def fail(ctx: PredictContext) -> None:
        raise ValueError(f"end of {ctx.states[0]}")

    hook = Recorder()
    with pytest.raises(ValueError, match="end of c"):  # the first that failed: requests end in reverse
        make_router().predict_batch([request(state) for state in "abc"], hooks=[At("on_predict_end", fail), hook])
    assert [ctx.states[0] for ctx in hook.seen("on_predict_end")] == ["c", "b", "a"]
    assert hook.seen("on_error") == []


def test_a_routing_failure_in_a_batch_fires_no_predict_event_because_nothing_was_started(
    make_router: MakeRouter,
) -> None:
    router, hook = make_router(), Recorder()
    with pytest.raises(ValueError, match="unknown checkpoint 'nobody'"):
        router.predict_batch([request("a"), request("b", "nobody")], hooks=hook)
    assert hook.events == ["on_route"]
    assert router.loaded == []


def test_a_loading_failure_in_a_batch_fires_no_predict_event_because_nothing_was_started(
    make_router: MakeRouter,
) -> None:
    hook = Recorder()
    with pytest.raises(FileNotFoundError):
        make_router(models={"english": "/there/is/no/such/place"}).predict_batch([request("a")], hooks=hook)
    assert hook.events == ["on_route"]


def test_in_a_batch_hooks_raise_false_warns_and_every_request_is_answered(make_router: MakeRouter) -> None:
    hook = refuse("b", ConnectionError("down"))
    with pytest.warns(RuntimeWarning, match="down"):
        results = make_router().predict_batch([request(state) for state in "abc"], hooks=hook, hooks_raise=False)
    assert [bool(result["answers"]) for result in results] == [True] * 3


def test_nothing_warns_where_nothing_fails(make_router: MakeRouter) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_router().predict_batch([request(state) for state in "abc"], hooks=Recorder(), hooks_raise=False)
