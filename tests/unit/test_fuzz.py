"""Whatever stands in a message is answered, refused by a typed error or set aside: never a crash, a hang, a bomb.

`python tests/fuzz.py --minutes 10` does the same for longer.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laya.language import detect
from laya.questions import parse_questions
from laya.segments import PART_CHARACTERS
from producer.errors import InvalidRequest, LayaError, PayloadTooLarge
from producer.jsonform import JsonForm
from producer.limits import Limits
from producer.request import PredictionRequest
from producer.request_checks import check, check_batch, check_size
from producer.transport_message import MalformedMessage, Taken
from tests.unit.fuzzing import CORPUS, INPUTS, PACKAGES, TARGETS, Kept, corpus, inputs, patterns, run

ROOT = Path(__file__).resolve().parents[2]
NOUL = {"type": "noul", "instructions": "It is urgent."}
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": ["a", "b"]}
LIMITS = Limits()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_kept_breaks_nothing_any_more(path: Path) -> None:
    run(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_inputs_and_a_corpus(target: str) -> None:
    assert target in INPUTS
    assert corpus(target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_time_of_fuzzing_breaks_nothing(target: str) -> None:
    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        run(target, data.draw(inputs(target)))

    fuzz()


# --- what no JSON text can hold, but a caller's object ---


def checked(state: Any, questions: Any = None, **options: Any) -> PredictionRequest:
    request = check(PredictionRequest(state, questions or {"q": NOUL}, options), JsonForm(LIMITS))
    check_size(request, LIMITS.payload)
    return request


def nested(depth: int, leaf: Any = "end") -> Any:
    for number in range(depth):
        leaf = [leaf] if number % 2 else {"k": leaf}
    return leaf


def cyclic() -> Any:
    loop: list[Any] = []
    loop.append({"again": loop})
    return loop


NOT_JSON: dict[str, Any] = {
    "a list that holds itself": cyclic(),
    "a hundred thousand levels": nested(100_000),
    "not a number": float("nan"),
    "infinity": float("inf"),
    "half a surrogate": "\ud800",
    "bytes": b"text",
    "a bytearray": bytearray(b"text"),
    "a date": datetime.date(2020, 1, 1),
    "a decimal": decimal.Decimal("1.5"),
    "a set": {1},
    "a generator": (number for number in range(3)),
    "a class": dict,
    "an object": object(),
    "a complex number": 1j,
    "a number of ten thousand digits": 10**10_000,
    "such a number as a key": {10**10_000: 1},
    "a tuple as a key": {(1, 2): 1},
    "two keys that are one": {1: "a", "1": "b"},
    "what kombu takes for another type": {"__type__": "uuid", "__value__": "x"},
}


@pytest.mark.parametrize("case", NOT_JSON)
@pytest.mark.parametrize("place", ["state", "in the state", "instructions", "criteria", "option"])
def test_what_is_not_json_is_refused_wherever_it_stands(case: str, place: str) -> None:
    value = NOT_JSON[case]
    asks: dict[str, Callable[[], Any]] = {
        "state": lambda: checked(value),
        "in the state": lambda: checked({"a": [value]}),
        "instructions": lambda: checked("hello", {"q": {**NOUL, "instructions": [value]}}),
        "criteria": lambda: checked("hello", {"q": {**CHOICE, "criteria": {"a": [value]}}}),
        "option": lambda: checked("hello", min_confidence={"choice": value}),
    }
    with pytest.raises(LayaError) as refusal:
        asks[place]()
    assert len(str(refusal.value)) < 1000
    json.dumps(refusal.value.as_entry())


class Text(str):
    __slots__ = ()

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "x" * 10_000_000

    def strip(self, *_: Any) -> str:
        return "fine"


class Number(int):
    def __repr__(self) -> str:
        return '"], "hooks": ["os.system"'

    __str__ = __repr__


class Changing(dict[str, Any]):
    """Shows another content every time."""

    def items(self) -> Any:
        yield from {"type": "noul", "instructions": str(time.thread_time())}.items()


def test_a_text_that_lies_about_its_length_is_counted_by_what_is_sent() -> None:
    with pytest.raises(PayloadTooLarge):
        checked(Text("x" * 2_000_000))


def test_a_number_that_lies_about_its_text_is_sent_as_a_number() -> None:
    assert json.loads(json.dumps(checked({"n": Number(7)}).state)) == {"n": 7}


def test_a_mapping_that_changes_is_sent_as_one_that_does_not() -> None:
    request = checked("hello", {"q": Changing(NOUL)})
    assert type(request.questions["q"]) is dict
    parse_questions(request.questions)


# --- bombs ---

MANY = 1_000_000


def _asked(definition: Any) -> Callable[[], Any]:
    return lambda: checked("x", {"q": definition})


# Each makes what it gives before the clock runs.
BOMBS: dict[str, Callable[[], Callable[[], Any]]] = {
    "a million options": lambda: _asked({**CHOICE, "criteria": [str(n) for n in range(MANY)]}),
    "a million levels of a score": lambda: _asked({"type": "score", "instructions": "x", "criteria": ["x"] * MANY}),
    "an order of a million places": lambda: _asked({**CHOICE, "option_order": [0] * MANY}),
    "a label of a million characters twice": lambda: _asked({**CHOICE, "criteria": ["l" * MANY] * 2}),
    "a million questions": lambda: partial(checked, "x", {str(n): NOUL for n in range(MANY)}),
    "as many refused questions as may be": lambda: partial(checked, "x", {str(n): 1 for n in range(1000)}),
    "a million numbers": lambda: partial(checked, [0] * MANY),
    "half a million empty texts": lambda: partial(checked, [""] * (MANY // 2)),
    "a million requests": lambda: partial(check_batch, [{"state": "x", "questions": {"q": NOUL}}] * MANY, LIMITS),
    "an id of a million characters": lambda: partial(checked, "x", {"i" * MANY: 1}),
    "a key of a million characters": lambda: partial(checked, {"k" * MANY: {1, 2}}),
    "sixty levels with long keys over many values": lambda: partial(
        checked, _under_long_keys(60, [{"a": 1}] * 20_000), {"q": NOUL}
    ),
    "a message of a hundred thousand levels": lambda: partial(Taken.read, b"[" * 100_000 + b"]" * 100_000),
    "a message of a number of a million digits": lambda: partial(Taken.read, b'{"a":' + b"9" * MANY + b"}"),
    "a message that names one key a hundred thousand times": lambda: partial(
        Taken.read, b"{" + b",".join([b'"a":1'] * 100_000) + b"}"
    ),
}


def _under_long_keys(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"k" * 500: leaf}
    return leaf


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_defused_at_once(bomb: str) -> None:
    action = BOMBS[bomb]()
    started = time.thread_time()
    with suppress(LayaError, MalformedMessage):
        action()
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("bomb", ["a million options", "a million questions", "a message of a hundred thousand levels"])
def test_a_bomb_needs_no_memory(bomb: str) -> None:
    action = BOMBS[bomb]()
    tracemalloc.start()
    try:
        with suppress(LayaError, MalformedMessage):
            action()
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_the_first_refused_question_of_many_is_found_in_time_that_grows_as_they_do() -> None:
    many = {str(n): NOUL for n in range(999)} | {"bad": {**NOUL, "type": "x"}}
    with pytest.raises(InvalidRequest) as refusal:
        checked("x", many)
    assert refusal.value.question == "bad"


# --- patterns ---

PATTERNS = patterns(ROOT)

# What makes a pattern try again: runs of what it repeats, without what it waits for.
UNITS = [
    *("a", "A", "1", " ", "\n", "\t", ".", "-", "_", "/", "'", '"', "<", "&", "{", "(", "\\", "$", "@", ":", ";", "="),
    *(
        "a.",
        "a/",
        "a-",
        "a_",
        "a'",
        "aA",
        "a1",
        "1.",
        "A1",
        "A-",
        "a.b",
        "a b",
        "v1.",
        "0x",
        "<a",
        "{a",
        "%(",
        "//",
        "../",
    ),
    *(
        "import ",
        "from ",
        "GET ",
        " -",
        "--",
        "::",
        "->",
        "1a",
        "é",
        "字",
        "?!",
        ". ",
        ".\t",
        '."',
        "hook ",
        "a@",
        "{}",
    ),
]

# Detection looks at parts of a text; normalised, a sign can become eighteen.
SHORT = {"laya.tokens": PART_CHARACTERS}


def test_every_pattern_of_the_project_is_looked_at() -> None:
    written = sum(
        path.read_text(encoding="utf-8").count("re.compile(")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    )
    assert len({id(kept.pattern) for kept in PATTERNS.values()}) >= written > 0


def seconds(kept: Kept, text: str) -> float:
    started = time.thread_time()
    if kept.searched:
        for _ in kept.pattern.finditer(text):
            pass
    else:
        kept.pattern.fullmatch(text)
    return time.thread_time() - started


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_linear_time_or_sees_short_texts_only(name: str) -> None:
    kept = PATTERNS[name]
    short = SHORT.get(name.rpartition(".")[0])
    for unit in UNITS:
        for end in ("", "\x00", "!"):
            if short is not None:
                assert seconds(kept, (unit * short)[:short] + end) < 0.1, (unit, end)
                continue
            if seconds(kept, (unit * 4000)[:4000] + end) < 0.005:
                continue
            # Doubling the text: twice the time is linear, four times quadratic. The best of three, for a busy machine.
            took = [min(seconds(kept, (unit * size)[:size] + end) for _ in range(3)) for size in (2000, 4000, 8000)]
            assert took[2] < 8 * took[0] or took[2] < 0.01, (unit, end, took)


def texts() -> Iterator[str]:
    for unit in UNITS:
        yield unit * (400_000 // len(unit))


def test_the_detection_of_a_language_takes_bounded_time_whatever_the_text() -> None:
    for text in texts():
        started = time.thread_time()
        detect(text)
        detect({"a": [text[:100_000]] * 4})
        assert time.thread_time() - started < 3, text[:20]


def test_the_fuzzing_command_says_what_it_did() -> None:
    command = [sys.executable, str(ROOT / "tests" / "fuzz.py"), "--minutes", "0.001", "--target", "questions"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(r"questions +[1-9]\d* inputs\n", run.stdout)
