"""An answer as logs, events and Flower show it."""

from __future__ import annotations

from kombu.utils.json import dumps, loads

from producer.shown import Shown

RESULT = {
    "model": "laya-rl-agent",
    "answers": {
        "team": {"type": "choice", "choice": "billing", "answer_confidence": 0.8642},
        "urgency": {"type": "score", "score": 1.8},
        "refund": {"type": "noul", "noul": 0.91},
    },
    "usage": {"input_tokens": 57, "output_tokens": 0},
    "routing": {"model": "multilingual", "detection": {"mixed_segment": "Bitte erstatten Sie den Betrag"}},
}


def test_what_was_decided_is_shown_and_nothing_of_the_state() -> None:
    assert repr(Shown(RESULT)) == "team=billing (0.86), urgency=1.8, refund=0.91; multilingual; 57 tokens"


def test_many_requests_are_counted() -> None:
    assert repr(Shown([RESULT, {"error": {"type": "InvalidRequest"}}, RESULT])) == "2 answered, 1 failed"


def test_the_result_store_writes_the_result_itself() -> None:
    assert loads(dumps({"result": Shown(RESULT)})) == {"result": RESULT}


def test_a_result_of_any_shape_can_be_shown() -> None:
    assert repr(Shown({})) == "no questions"
    assert repr(Shown(None)) == "NoneType"
    assert repr(Shown({"answers": {"q": 3}, "routing": 1})) == "q=None"
    assert len(repr(Shown({"answers": {"q": {"type": "choice", "choice": "x" * 9999}}}))) == 300
