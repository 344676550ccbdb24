"""Whose request a message is: what a signature covers, and what becomes of every message that does not have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from producer.app import PredictionApp
from producer.bulk import predict_many
from producer.client import ask
from producer.errors import InvalidRequest
from producer.settings import ProducerSettings
from producer.tasks import register
from producer.tenancy import SIGNATURE_HEADER, TENANT_HEADER, Call, signed, verified
from producer.testing import AnsweringService, answering

OLD, NEW = "an old secret of some length", "a new secret of some length"
QUESTIONS = {"q": {"type": "noul", "instructions": "Is it?"}}
CALL: Call = ("laya.submit_prediction", "the-id", ["a state", QUESTIONS], {"max_len": 64})


def settings(key: str | None = NEW, **others: Any) -> ProducerSettings:
    return ProducerSettings(tenant_key=key, **others)


def test_what_a_backend_signs_a_worker_with_the_same_secret_believes() -> None:
    assert verified(signed("acme", CALL, settings()), CALL, settings()) == "acme"


def test_a_message_that_names_no_tenant_is_the_deployments_own() -> None:
    assert verified({"laya_schema": 1}, CALL, settings()) is None


@pytest.mark.parametrize(
    ("backend", "worker"), [(OLD, f"{NEW}, {OLD}"), (f"{OLD},{NEW}", f"{NEW},{OLD}"), (f"{NEW},{OLD}", NEW)]
)
def test_secrets_are_changed_without_a_message_being_refused(backend: str, worker: str) -> None:
    assert verified(signed("acme", CALL, settings(backend)), CALL, settings(worker)) == "acme"


Tampering = Callable[[dict[str, Any], list[Any]], None]
TAMPERINGS: dict[str, Tampering] = {
    "another tenant": lambda headers, call: headers.update({TENANT_HEADER: "globex"}),
    "another task's name": lambda headers, call: call.__setitem__(0, "laya.submit_predictions"),
    "another task's id": lambda headers, call: call.__setitem__(1, "another-id"),
    "another state": lambda headers, call: call.__setitem__(2, ["another state", QUESTIONS]),
    "another option": lambda headers, call: call.__setitem__(3, {"max_len": 65}),
    "an argument moved": lambda headers, call: call.__setitem__(2, ["a state"]),
    "no signature": lambda headers, call: headers.pop(SIGNATURE_HEADER),
    "a signature alone": lambda headers, call: headers.pop(TENANT_HEADER),
    "a signature that is no text": lambda headers, call: headers.update({SIGNATURE_HEADER: 7}),
    "half a surrogate pair": lambda headers, call: headers.update({SIGNATURE_HEADER: "1:\ud800"}),
    "a later version": lambda headers, call: headers.update({SIGNATURE_HEADER: "2" + headers[SIGNATURE_HEADER][1:]}),
    "a name that is none": lambda headers, call: headers.update({TENANT_HEADER: "acme:globex"}),
    "arguments too deep to read": lambda headers, call: call.__setitem__(2, nested(100_000)),
}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("tampering", TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_message_that_was_tampered_with_is_refused(tampering: Tampering) -> None:
    headers, call = signed("acme", CALL, settings()), list(CALL)
    tampering(headers, call)
    with pytest.raises(InvalidRequest, match="tenant"):
        verified(headers, tuple(call), settings())


def test_questions_in_another_order_are_another_message() -> None:
    two = {"a": QUESTIONS["q"], "b": QUESTIONS["q"]}
    name, task_id, _, options = CALL
    headers = signed("acme", (name, task_id, ["x", two], options), settings())
    with pytest.raises(InvalidRequest, match="does not match"):
        verified(headers, (name, task_id, ["x", dict(reversed(two.items()))], options), settings())


def test_a_worker_without_the_secret_refuses_rather_than_guess() -> None:
    with pytest.raises(InvalidRequest, match="set LAYA_TENANT_KEY to the backend's secret"):
        verified(signed("acme", CALL, settings()), CALL, settings(None))


def test_a_worker_with_another_secret_refuses() -> None:
    with pytest.raises(InvalidRequest, match="give backends and workers the same LAYA_TENANT_KEY"):
        verified(signed("acme", CALL, settings(OLD)), CALL, settings(NEW))


@pytest.mark.parametrize("name", ["", "acme:globex", "a" * 65, "two words", "é", 7, None, ["acme"]])
def test_a_tenants_name_is_one_that_a_key_can_hold(name: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected 1 to 64 letters"):
        signed(name, CALL, settings())


def test_the_deployments_own_namespace_is_no_tenants() -> None:
    with pytest.raises(InvalidRequest, match="the deployment's own"):
        signed("prod", CALL, settings(namespace="prod"))


def test_a_tenant_without_a_secret_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(InvalidRequest, match="set LAYA_TENANT_KEY"):
        signed("acme", CALL, settings(None))


@pytest.mark.parametrize("key", ["short", f"{NEW},", f"{NEW},short"])
def test_a_secret_that_can_be_guessed_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ValueError, match="at least 16 characters") as refused:
        settings(key)
    assert key not in str(refused.value)


def test_a_secret_is_not_shown() -> None:
    assert NEW not in repr(settings())


class Eager:
    """A backend that answers in its own process, and what was submitted to it."""

    def __init__(self, app: PredictionApp, service: AnsweringService) -> None:
        self.submit_prediction, self.submit_predictions = register(app)
        self.service = service


@pytest.fixture
def eager() -> Iterator[Eager]:
    app = PredictionApp(settings())
    with answering(app=app) as service:
        yield Eager(app, service)
    app.close()


def test_every_way_to_ask_takes_a_tenant(eager: Eager) -> None:
    requests = [{"state": "x", "questions": QUESTIONS}]
    eager.submit_prediction.delay("x", QUESTIONS, tenant="one").get()
    eager.submit_prediction.apply_async(("x", QUESTIONS), tenant="two").get()
    eager.submit_prediction.s("x", QUESTIONS).set(tenant="three").apply_async().get()
    eager.submit_predictions.delay(requests, tenant="four").get()
    ask(eager.submit_prediction, "x", QUESTIONS, 5, {"tenant": "five"})
    list(predict_many(requests, tenant="six", task=eager.submit_predictions))
    ask(eager.submit_prediction, "x", QUESTIONS, 5, {"tenant": None})
    assert [sent.tenant for sent in eager.service.submissions] == ["one", "two", "three", "four", "five", "six", None]
    assert all("tenant" not in sent.options for sent in eager.service.submissions)


def test_a_tenant_inside_a_request_of_a_list_is_refused_in_its_place(eager: Eager) -> None:
    request = {"state": "x", "questions": QUESTIONS}
    bad, good = eager.submit_predictions.delay([{**request, "tenant": "acme"}, request]).get()
    assert "tenant is no option of a request" in bad["error"]["message"]
    assert "answers" in good


@pytest.mark.parametrize("value", ["no", 0, 1])
def test_cache_is_true_or_false_and_nothing_else(eager: Eager, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="cache must be True or False"):
        eager.submit_prediction.delay("x", QUESTIONS, cache=value)


def test_cache_false_travels_as_an_option(eager: Eager) -> None:
    eager.submit_prediction.delay("x", QUESTIONS, cache=False).get()
    eager.submit_predictions.delay([{"state": "x", "questions": QUESTIONS, "cache": False}]).get()
    assert [sent.options for sent in eager.service.submissions] == [{"cache": False}] * 2
