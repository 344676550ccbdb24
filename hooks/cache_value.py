"""The value of a cached answer: what is written of a result, and whether what was read answers what was asked.

A value is the plain result of one state, as the checkpoint computed it, under a version and the digest of its key: a
value that was moved to another key, or came over a connection that lost its place, is no answer. What belongs to the
asking call (the marks of the confidence gate, the routing) is never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

import zstandard

from hooks import cache_json

SCHEMA: Final = 1
"""It rises when a value is written in another way; another schema's values are misses."""

GATE_FIELDS: Final = ("low_confidence", "abstention", "abstention_threshold")
_GATE_FIELDS: Final = frozenset(GATE_FIELDS)

MAX_TEXT: Final = 64 * 1024 * 1024
"""Bytes of text that a compressed value may become; more is nobody's result."""

_RAW, _COMPRESSED = b"j", b"z"  # the first byte of a packed value


class Unusable(ValueError):
    """A stored value that is none, or does not answer what was asked."""


def write(result: Mapping[str, Any], digest: str, questions: Any) -> bytes | None:
    """The text of a result, None for one that could not be read again: not JSON, or not an answer to the questions."""
    plain = _plain(result)
    try:
        _check(plain, questions)
        form, text = cache_json.dumps(plain)
    except (Unusable, cache_json.NotJson):
        return None
    return b"%d %s %s %s" % (SCHEMA, digest.encode(), form.encode(), text)


def read(text: bytes, digest: str, questions: Any) -> dict[str, Any]:
    """The result in a text that `write` made for this key: a new object each time.

    Raises:
        Unusable: the text is damaged, of another schema or of another key, or answers other questions.
    """
    result = result_of(text, digest)
    _check(result, questions)
    found: dict[str, Any] = result
    return found


def result_of(text: bytes, digest: str) -> Any:
    """What a text holds that `write` made for this key, whatever it answers.

    Raises:
        Unusable: the text is damaged, of another schema or of another key.
    """
    parts = text.split(b" ", 3)
    if len(parts) != 4 or parts[0] != b"%d" % SCHEMA:
        raise Unusable("not a value of this schema")
    if parts[1] != digest.encode():
        raise Unusable("the value of another key")
    try:
        return cache_json.loads(parts[2].decode("ascii", "replace"), parts[3])
    except cache_json.NotJson as error:
        raise Unusable(str(error)) from None


def pack(text: bytes, compress_above: int) -> bytes:
    """A text as it is stored: compressed where it is longer than `compress_above` bytes and becomes shorter so."""
    if len(text) > compress_above:
        compressed = zstandard.ZstdCompressor().compress(text)
        if len(compressed) < len(text):
            return _COMPRESSED + compressed
    return _RAW + text


def unpack(data: Any) -> bytes:
    """The text in stored data.

    Raises:
        Unusable: it holds none.
    """
    if not isinstance(data, bytes) or data[:1] not in (_RAW, _COMPRESSED):
        raise Unusable("not a stored value")
    if data[:1] == _RAW:
        return data[1:]
    try:
        # The size is looked at first, because the decompressor makes room for whatever the frame claims.
        if not 0 <= zstandard.frame_content_size(data[1:]) <= MAX_TEXT:
            raise Unusable("a compressed value of no known size")
        return zstandard.ZstdDecompressor().decompress(data[1:])
    except (zstandard.ZstdError, MemoryError) as error:
        raise Unusable(f"not a compressed value: {type(error).__name__}") from None


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what belongs to the asking call."""
    plain = {name: value for name, value in result.items() if name != "routing"}
    answers = plain.get("answers")
    if isinstance(answers, Mapping) and any(
        isinstance(answer, Mapping) and any(name in answer for name in GATE_FIELDS) for answer in answers.values()
    ):
        plain["answers"] = {
            id_: {name: value for name, value in answer.items() if name not in GATE_FIELDS}
            if isinstance(answer, Mapping)
            else answer
            for id_, answer in answers.items()
        }
    return plain


def _check(result: Any, questions: Any) -> None:
    """Refuse what does not answer exactly these questions, in their order, with their labels."""
    # Only dicts: a look at an abstract class takes several times as long, and every hit passes here.
    if not _is_mapping(result) or "routing" in result or not _is_mapping(result.get("usage")):
        raise Unusable("not a plain result")
    answers = result.get("answers")
    if not _is_mapping(answers) or not _same(answers, questions):
        raise Unusable("answers to other questions")
    for answer, question in zip(answers.values(), questions.values(), strict=True):
        if not _is_mapping(answer) or answer.get("type") != question.get("type"):
            raise Unusable("an answer of another type")
        if not _GATE_FIELDS.isdisjoint(answer) or not _answers(answer, question):
            raise Unusable("an answer to another question")


def _answers(answer: Mapping[str, Any], question: Mapping[str, Any]) -> bool:
    """Whether the answer's labels are the question's."""
    match answer["type"]:
        case "choice":
            labels, chosen = list(question.get("criteria") or ()), answer.get("choice")
            probabilities = answer.get("probabilities")
            return (
                _is_mapping(probabilities)
                and _same(probabilities, labels)
                and any(type(chosen) is type(label) and chosen == label for label in labels)
            )
        case "score":
            levels = [str(level) for level in range(len(question.get("criteria") or ()))]
            parts = (answer.get("probabilities"), answer.get("legend"))
            return _is_number(answer.get("score")) and all(_is_mapping(one) and list(one) == levels for one in parts)
        case "noul":
            return _is_number(answer.get("noul"))
    return False


def _same(found: Mapping[Any, Any], asked: Mapping[Any, Any] | Sequence[Any]) -> bool:
    """Whether these keys are those, in order, types included: 1, 1.0 and True are one key to a dict."""
    ours, theirs = list(found), list(asked)
    return ours == theirs and list(map(type, ours)) == list(map(type, theirs))


def _is_number(value: Any) -> bool:
    return type(value) is float or type(value) is int


def _is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """What is read is always a dict, and known as one in a tenth of the time."""
    return type(value) is dict or isinstance(value, Mapping)
