"""What is fuzzed: each target takes bytes, as they could stand in a message, and may raise nothing that is not typed.

Texts are made in two ways: near to what is valid, so that they get far, and by damaging what is kept in the corpus.
What has ever broken a target is kept in `tests/data/fuzz/<target>/`, and replayed with every run of the tests.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from celery.exceptions import InvalidTaskError
from hypothesis import strategies as st
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.utils.json import dumps, loads

from laya.language import detect
from laya.questions import parse_questions
from producer.app import PredictionApp
from producer.errors import LayaError
from producer.settings import ProducerSettings
from producer.tasks import register
from producer.testing import AnsweringService
from producer.transport_message import MalformedMessage, Message, Taken
from worker.dead import letter_of
from worker.messages import PredictionMessage
from worker.settings import WorkerSettings

CORPUS: Final = Path(__file__).resolve().parents[1] / "data" / "fuzz"

SLOW_S: Final = 5.0
"""Seconds that no input of a few kilobytes may take, on a machine that does much else."""


class Broken(AssertionError):
    """A target did what it must not."""


@cache
def _app() -> PredictionApp:
    settings = WorkerSettings(checkpoints="english=/e,multilingual=/m,typed-decisions=/t", task_always_eager=True)
    app = PredictionApp(settings)
    register(app)
    app.service = AnsweringService(None, app)
    return app


def _document(data: bytes) -> Any:
    """The JSON of a body as a worker reads it.

    Raises:
        ValueError: it is none; kombu makes a DecodeError of whatever that was, and the message is refused.
    """
    try:
        return loads(data)
    except Exception as error:
        raise ValueError(str(error)) from error


def message(data: bytes) -> None:
    """What comes from a queue: the envelope, then Celery's request of it."""
    try:
        taken = Taken.read(data)
        envelope = Message(taken, channel=_Channel())
    except MalformedMessage:
        return
    json.dumps(letter_of(envelope, "unreadable", "fuzzed").__slots__)
    headers = envelope.headers
    if not isinstance(headers, dict) or not isinstance(headers.get("task"), str):
        return  # Celery, and then the wire, refuse it: tests/faults/test_garbage.py
    try:
        if not isinstance(envelope.payload, list | dict):
            return
        request = PredictionMessage(envelope, app=_app(), task=_app().tasks["laya.submit_prediction"])
    except (InvalidTaskError, DecodeError, ContentDisallowed):
        return
    shown = f"{request} {request!r} {json.dumps(request.info(), default=repr)} {request.name}"
    if not shown.isprintable():
        raise Broken(f"a message can write what it likes into a log: {shown[:300]!r}")
    request.revoked()


def call(data: bytes) -> None:
    """The arguments of one prediction, at the backend and in the worker's task."""
    args, kwargs = _arguments(data)
    task = _app().tasks["laya.submit_prediction"]
    _typed(lambda: astuple(task.submission(args, kwargs)))
    _typed(lambda: task.run(*args, **kwargs))


def batch(data: bytes) -> None:
    """The arguments of a message of many predictions, likewise."""
    args, kwargs = _arguments(data)
    task = _app().tasks["laya.submit_predictions"]
    _typed(lambda: astuple(task.submission(args, kwargs)))
    _typed(lambda: task.run(*args, **kwargs))


def questions(data: bytes) -> None:
    """Questions alone: the library's own check, whose errors are exactly ValueError and TypeError."""
    asked = _document(data)
    try:
        parsed = parse_questions(asked)
    except (TypeError, ValueError) as error:
        if type(error) not in {TypeError, ValueError}:
            raise Broken(f"{type(error).__name__} instead of a ValueError or TypeError") from error
        return
    for question in parsed:
        if not question.k or len(question.labels) != question.k or not question.instructions:
            raise Broken(f"a question without sense: {question!r}")


def language(data: bytes) -> None:
    """Any text, and any document: there is always a finding."""
    text = data.decode("utf-8", "surrogateescape")
    for state in (text, [text, {"text": text}]):
        found = detect(state)
        if not json.dumps(found):
            raise Broken("nothing was found")


def settings(data: bytes) -> None:
    """What an administrator writes: a value that cannot be read is a ValueError that does not repeat a password."""
    text = data.decode("utf-8", "replace")
    for name in ("broker_url", "checkpoints", "default_model", "namespace"):
        try:
            ProducerSettings(**{name: text})
        except ValueError:
            continue


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target for target in (message, call, batch, questions, language, settings)
}


def run(target: str, data: bytes) -> None:
    """Give one input to a target.

    Raises:
        Broken: it took too long.
        Exception: whatever a target must not raise.
    """
    started = time.perf_counter()
    try:
        TARGETS[target](data)
    except ValueError as error:
        if not isinstance(error.__cause__, Exception) or not str(error):
            raise
        if error.__traceback__ is not None and "_document" not in _functions(error):
            raise
    if (seconds := time.perf_counter() - started) > SLOW_S:
        raise Broken(f"{seconds:.1f} s for {len(data)} bytes")


def corpus(target: str) -> list[Path]:
    """What is kept for a target."""
    return sorted((CORPUS / target).glob("*"))


def _functions(error: BaseException) -> set[str]:
    found, trace = set(), error.__traceback__
    while trace is not None:
        found.add(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


class _Channel:
    """As much of a channel as a message needs to be decoded."""

    body_encoding = "base64"

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        return base64.b64decode(body) if encoding == "base64" else body


def _arguments(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    document = _document(data)
    if not isinstance(document, list) or len(document) != 2:
        return [document], {}
    args, kwargs = document
    return (
        args if isinstance(args, list) else [args],
        {name: value for name, value in kwargs.items() if isinstance(name, str)} if isinstance(kwargs, dict) else {},
    )


def _typed(action: Callable[[], Any]) -> None:
    try:
        result = action()
    except LayaError as error:
        json.dumps([str(error), error.message, error.fields, error.as_entry()], allow_nan=False)
        return
    dumps(result)


# --- inputs ---

_TEXTS: Final = st.one_of(
    st.sampled_from(["", " ", "a", "true", "False", "\x00", "\ud800", "a\nb", "\x1b[31m", "english", "../x", "/etc/x"]),
    st.text(max_size=20),
)
_NUMBERS: Final = st.one_of(
    st.integers(-3, 9), st.sampled_from([10**30, -(2**63), 0.0, -0.0, 1e308]), st.floats(allow_nan=False)
)
_LEAVES: Final = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
_KEYS: Final = st.one_of(
    st.sampled_from(["type", "instructions", "criteria", "labels", "option_order", "error", "__type__", "__value__"]),
    _TEXTS,
)
ANYTHING: Final = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=12
)
_QUESTION: Final = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["choice", "score", "noul"]) | ANYTHING,
        "instructions": _TEXTS | ANYTHING,
        "criteria": st.lists(_LEAVES, max_size=5) | st.dictionaries(_TEXTS, _LEAVES, max_size=5) | ANYTHING,
        "labels": st.fixed_dictionaries({"false": _TEXTS, "true": _TEXTS}) | ANYTHING,
        "option_order": st.permutations(range(3)) | ANYTHING,
    },
)
QUESTIONS: Final = st.dictionaries(_TEXTS, _QUESTION | ANYTHING, max_size=3) | ANYTHING
_OPTIONS: Final = st.dictionaries(
    st.sampled_from(
        ["model", "task", "lang", "lang_guess", "max_len", "head_max_len", "min_confidence", "no_store", "hooks", "x"]
    ),
    st.sampled_from(["english", "nobody", "org/model", "de", "triage"]) | ANYTHING,
    max_size=3,
)
_ENTRY: Final = st.fixed_dictionaries(
    {"error": st.fixed_dictionaries({}, optional={"type": ANYTHING, "message": ANYTHING, "fields": ANYTHING})}
)
_REQUEST: Final = st.builds(
    lambda state, asked, options: {"state": state, "questions": asked, **options}, ANYTHING, QUESTIONS, _OPTIONS
)
_HEADERS: Final = st.fixed_dictionaries(
    {"task": st.just("laya.submit_prediction"), "id": _TEXTS | ANYTHING},
    optional=dict.fromkeys(
        (
            *("lang", "root_id", "parent_id", "group", "argsrepr", "kwargsrepr", "shadow", "retries", "timelimit"),
            *("eta", "expires", "origin", "ignore_result", "stamped_headers", "stamps", "laya_schema", "laya_tenant"),
        ),
        _TEXTS | ANYTHING,
    ),
)


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


def _envelope(headers: Any, body: Any, extra: Any) -> bytes:
    properties = {
        "delivery_tag": "tag",
        "delivery_info": {"exchange": "", "routing_key": "laya.english"},
        "body_encoding": "base64",
        "correlation_id": "id",
    }
    parts: dict[str, Any] = {
        "body": base64.b64encode(_text(body)).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return _text({**parts, **extra})


_PARTS: Final = st.sampled_from(["body", "content-encoding", "content-type", "headers", "properties"])
_BODY: Final = st.tuples(st.lists(ANYTHING, max_size=2), _OPTIONS, st.dictionaries(_TEXTS, ANYTHING, max_size=2))

INPUTS: Final[dict[str, st.SearchStrategy[bytes]]] = {
    "message": st.builds(
        _envelope, _HEADERS | ANYTHING, _BODY | ANYTHING, st.just({}) | st.dictionaries(_PARTS, ANYTHING, max_size=1)
    ),
    "call": st.tuples(st.tuples(ANYTHING, QUESTIONS), _OPTIONS).map(_text),
    "batch": st.tuples(st.tuples(st.lists(_REQUEST | _ENTRY | ANYTHING, max_size=4)), st.just({})).map(_text),
    "questions": QUESTIONS.map(_text),
    "language": st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")),
    "settings": st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")),
}


@st.composite
def damaged(draw: Any, target: str) -> bytes:
    """Something of the corpus with a few bytes changed, cut out or doubled."""
    kept = [path.read_bytes() for path in corpus(target)] or [b"{}"]
    data = bytearray(draw(st.sampled_from(kept))[:4000])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from(["change", "cut", "double", "insert"]))
        if what == "change" and data:
            data[place % len(data)] = draw(st.integers(0, 255))
        elif what == "cut":
            del data[place : place + draw(st.integers(1, 8))]
        elif what == "double":
            data[place:place] = data[place : place + draw(st.integers(1, 40))]
        else:
            data[place:place] = draw(st.sampled_from(_TOKENS))
    return bytes(data)


_TOKENS: Final = [
    b"[",
    b"{",
    b'"',
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"null",
    b'"__type__":',
    b"\\ud800",
    b"\x00",
    b"9" * 50,
]


def inputs(target: str) -> st.SearchStrategy[bytes]:
    """What a target is given."""
    return INPUTS[target] | damaged(target)


# --- patterns ---

PACKAGES: Final = ("laya", "producer", "hooks", "worker")

_SEARCHES: Final = re.compile(r"\b(_?[A-Z][A-Z_]*)\.(?:sub|search|findall|finditer|split)\(")


@dataclass(frozen=True)
class Kept:
    """A pattern of a module, and whether it is searched for in a text or only compared with one."""

    pattern: re.Pattern[str]
    searched: bool


def patterns(root: Path) -> dict[str, Kept]:
    """Every pattern that a module of the four packages keeps, by where it is: `module.NAME`."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "re.compile(" in source:
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            searched = set(_SEARCHES.findall(source))
            for name, value in vars(importlib.import_module(module)).items():
                if isinstance(value, re.Pattern):
                    found[f"{module}.{name}"] = Kept(value, name in searched)
    return found
