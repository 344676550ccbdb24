"""From a backend through the queue to a checkpoint's answer and back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import chain, chord, group
from kombu.utils.uuid import uuid

from laya import Router
from producer.errors import DeadlineExceeded, InvalidRequest, LayaError, PredictionFailed, UnknownCheckpoint
from producer.served import served
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until

# The english checkpoint carries temperatures that are clamped, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:checkpoint .* temperatures outside:RuntimeWarning")

TEXTS = {
    "english": "I was charged twice for one order and would like my money back.",
    "multilingual": "Ich wurde zweimal belastet und möchte mein Geld zurück.",
}


@pytest.fixture(scope="module", autouse=True)
def worker(make_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    return make_worker(
        "-c", "8", LAYA_HOOKS="queue_hooks.Trouble", LAYA_PRELOAD="english,multilingual,typed-decisions"
    ).start()


@pytest.fixture(scope="module")
def router(golden_checkpoints: dict[str, Any]) -> Router:
    return Router(models={name: str(path) for name, path in golden_checkpoints.items()}, device="cpu", max_loaded=3)


@pytest.mark.parametrize("model", ["english", "multilingual", "typed-decisions"])
def test_an_answer_through_the_queue_is_the_library_s_own(
    model: str, backend: Backend, router: Router, questions: dict[str, Any]
) -> None:
    for state in (*TEXTS.values(), {"subject": "Refund", "lines": [1, 2.5, None]}, [{"role": "user", "text": "hi"}]):
        direct = router.predict(state, questions, model=model, min_confidence=0.5)
        assert backend.predict(state, questions, model=model, min_confidence=0.5) == json.loads(json.dumps(direct))


@pytest.mark.parametrize("checkpoint", sorted(TEXTS))
def test_the_text_s_language_decides_the_queue_and_the_checkpoint(
    checkpoint: str, backend: Backend, questions: dict[str, Any]
) -> None:
    submission = backend.submit_prediction.submission((TEXTS[checkpoint], questions), {})
    assert submission.checkpoint == checkpoint
    assert backend.predict(TEXTS[checkpoint], questions)["routing"]["model"] == checkpoint


def test_a_backend_can_ask_how_a_task_was_answered(backend: Backend, questions: dict[str, Any]) -> None:
    task_id = uuid()
    backend.predict(TEXTS["english"], questions, task_id=task_id)
    facts = served(task_id, backend.app)
    assert facts is not None
    assert facts["worker"].startswith("worker0@")
    assert facts["seconds"] > 0
    assert (facts["requests"], facts["hits"], facts["checkpoints"]) == (1, 0, ["english"])


def test_a_message_of_many_says_how_each_checkpoint_had_its_part(backend: Backend, questions: dict[str, Any]) -> None:
    requests = [{"state": text, "questions": questions} for text in TEXTS.values()]
    task = backend.submit_predictions.delay([*requests, {"state": "no questions"}])
    task.get(timeout=30)
    facts = served(task.id, backend.app)
    assert facts is not None
    assert facts["requests"] == 2
    assert sorted(facts["checkpoints"]) == ["english", "multilingual"]


def test_nothing_is_known_of_a_task_that_was_not_answered(backend: Backend) -> None:
    assert served(uuid(), backend.app) is None


def test_delay_and_get_answer_too(backend: Backend, questions: dict[str, Any]) -> None:
    result = backend.submit_prediction.delay(TEXTS["english"], questions, model="english")
    assert result.get(timeout=30) == backend.predict(TEXTS["english"], questions, model="english")


def test_no_questions_get_an_answer_without_answers(backend: Backend) -> None:
    assert backend.predict("hello", {})["answers"] == {}


def test_many_wait_at_once_on_one_connection(backend: Backend, client: redis.Redis, questions: dict[str, Any]) -> None:
    async def ask(count: int) -> list[dict[str, Any]]:
        one = {"angry": questions["angry"]}
        return await asyncio.gather(*(backend.apredict(f"text {i}", one, model="english") for i in range(count)))

    subscribers = []

    async def watch_while(answers: Any) -> Any:
        task = asyncio.ensure_future(answers)
        while not task.done():
            subscribers.append(sum(one["sub"] != "0" for one in client.client_list(_type="pubsub")))
            await asyncio.sleep(0.01)
        return await task

    before = sum(one["sub"] != "0" for one in client.client_list(_type="pubsub"))
    assert len(asyncio.run(watch_while(ask(200)))) == 200
    assert max(subscribers) <= before + 1


def test_the_event_loop_goes_on_while_the_server_is_slow(
    backend: Backend, client: redis.Redis, questions: dict[str, Any]
) -> None:
    async def ticks_during_a_prediction() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        client.client_pause(600)
        await backend.apredict("hello", questions, model="english")
        ticking.cancel()
        return ticks

    # A loop that was blocked for as long as the server is paused would tick hardly at all.
    assert asyncio.run(ticks_during_a_prediction()) >= 20


def test_canvas_groups_chains_chords_and_links(backend: Backend, client: redis.Redis, questions: Any) -> None:
    ask = backend.submit_prediction
    grouped = group(ask.s(f"text {i}", questions, model="english") for i in range(5))()
    assert [result["routing"]["model"] for result in grouped.get(timeout=30)] == ["english"] * 5
    # The first answer is the second request's state.
    chained = chain(ask.s("hello", questions, model="english"), ask.s(questions, model="multilingual"))()
    assert chained.get(timeout=30)["routing"]["model"] == "multilingual"
    body = chord([ask.s("a", questions, model="english"), ask.s("b", questions, model="english")])(
        ask.s(questions, model="english")
    )
    assert body.get(timeout=30)["routing"]["model"] == "english"
    linked = ask.apply_async(
        ("hello", questions),
        {"model": "english"},
        link=ask.s(questions, model="multilingual").set(task_id="the-linked-task"),
    )
    linked.get(timeout=30)
    follow_up = ask.AsyncResult("the-linked-task")
    assert follow_up.get(timeout=30)["routing"]["model"] == "multilingual"


def test_a_countdown_is_kept(backend: Backend, questions: dict[str, Any]) -> None:
    started = time.monotonic()
    backend.submit_prediction.apply_async(("hello", questions), {"model": "english"}, countdown=1).get(timeout=30)
    assert time.monotonic() - started >= 1


def test_a_batch_is_answered_in_order_and_a_bad_request_fails_no_other(
    backend: Backend, questions: dict[str, Any]
) -> None:
    requests: list[Any] = [
        {"state": TEXTS["english"], "questions": questions},
        {"state": None, "questions": questions},
        {"state": "raise RuntimeError", "questions": questions, "model": "english"},
        {"state": TEXTS["multilingual"], "questions": questions, "min_confidence": 0.99},
        {"state": "hello", "questions": questions, "model": "nobody's"},
        {"state": {1, 2}, "questions": questions},
        "no mapping",
    ]
    results = backend.submit_predictions.delay(requests).get(timeout=30)
    assert results[0] == backend.predict(TEXTS["english"], questions)
    assert results[3] == backend.predict(TEXTS["multilingual"], questions, min_confidence=0.99)
    errors = [type(LayaError.from_entry(results[place])) for place in (1, 2, 4, 5, 6)]
    assert errors == [InvalidRequest, PredictionFailed, UnknownCheckpoint, InvalidRequest, InvalidRequest]


def test_an_answer_that_is_no_json_is_an_error_at_its_place_and_alone(
    backend: Backend, questions: dict[str, Any]
) -> None:
    requests = [{"state": state, "questions": questions} for state in ("hello", "answer with an object")]
    good, bad = backend.submit_predictions.delay(requests).get(timeout=30)
    assert good == backend.predict("hello", questions)
    with pytest.raises(PredictionFailed, match="cannot be written as JSON: a hook"):
        raise LayaError.from_entry(bad)
    with pytest.raises(PredictionFailed, match="JSON"):
        backend.predict("answer with an object", questions)


def test_an_empty_batch_is_an_empty_list(backend: Backend) -> None:
    assert backend.submit_predictions.delay([]).get(timeout=30) == []


def test_what_waited_past_its_expiry_is_a_deadline_exceeded(backend: Backend, questions: dict[str, Any]) -> None:
    expired = backend.submit_prediction.apply_async(
        ("hello", questions), {"model": "english"}, countdown=0.5, expires=0.01
    )
    with pytest.raises(DeadlineExceeded):
        expired.get(timeout=30)


def test_the_caller_s_timeout_is_a_deadline_exceeded_and_leaves_nothing_behind(
    backend: Backend, client: redis.Redis, questions: dict[str, Any]
) -> None:
    with pytest.raises(DeadlineExceeded, match=r"within 0\.3 seconds"):
        backend.predict("sleep 1", questions, timeout=0.3, model="english")

    def channels() -> list[bytes]:
        return [name for name in client.pubsub_channels() if b"task-meta" in name and b"watch" not in name]

    wait_until(lambda: not channels(), what="the end of the subscription")


def test_events_and_messages_carry_no_text_of_a_state(
    backend: Backend, client: redis.Redis, worker: WorkerProcess, questions: dict[str, Any]
) -> None:
    secret = "Xanadu"
    state = (
        "I was charged twice for one order, please help me with this now.\n"
        f"Bitte erstatten Sie mir für {secret} den doppelten Betrag zurück."
    )
    seen: list[Any] = []
    with backend.app.connection_for_read() as connection:
        receiver = backend.app.events.Receiver(connection, handlers={"*": seen.append})
        capture = receiver.itercapture(limit=None, timeout=30, wakeup=False)
        next(capture)
        result = backend.predict(state, questions)
        while not any(event["type"] == "task-succeeded" for event in seen):
            next(capture)
    received = next(event for event in seen if event["type"] == "task-received")
    described = f"(text of {len(state)} characters; team, urgency, angry)"
    assert received["args"] == f"{result['routing']['model']} {described}"
    assert secret in result["routing"]["detection"]["mixed_segment"], "the result itself quotes the state"
    succeeded = next(event for event in seen if event["type"] == "task-succeeded")
    assert succeeded["result"].startswith("team=")
    assert secret not in json.dumps(seen)
    assert secret not in worker.text()
