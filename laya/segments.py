"""The text of a state, and its parts: what language detection reads of a state of any shape and size.

Only string values are read, no keys. The amounts are bounded, so that a state of many megabytes costs little; the
parts are lines and sentences, since another language usually comes as one of them. Judging a part is
`laya.latin`'s work.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

MAX_VALUES: Final = 20_000
"""Values of a state that are visited from its start, and as many from its end."""

MAX_CHARACTERS: Final = 32_000
"""Characters that are split into parts from a text's start, and as many from its end.

A checkpoint reads at most 8192 tokens, from the start of a string or mapping or from the end of a conversation.
"""

MAX_PARTS: Final = 1_000
"""Different parts that are kept from the start of what was split, and as many from its end."""

SAMPLES: Final = 64
"""Parts taken at even distances from what lies between start and end."""

PART_CHARACTERS: Final = 300
"""A part is at most this long: so much of a sentence shows its language, and the n-gram detector reads it whole."""

SENTENCE_CHARACTERS: Final = 30
"""A shorter sentence stays together with the next one of its line: alone it says too little."""

MAX_JSON: Final = 200_000
"""Characters of a string that is still read as JSON if it is JSON; a longer one is read as text."""

_ROLES: Final = frozenset(
    {"ai", "agent", "assistant", "bot", "customer", "developer", "function", "human", "system", "tool", "user"}
)
_CONTENT_PARTS: Final = frozenset({"text", "input_text", "output_text"})

_PART_END: Final = re.compile(
    r"(?P<line>[\r\n\v\f\x85\u2028\u2029]+)|[.!?\u2026][\"')\]\u201d]*[ \t\u00a0]+|[\u3002\uff01\uff1f]"
)


class Reading(NamedTuple):
    """What was read of a state: its `strings`, and as `json` those of them that were JSON, for their look only."""

    strings: list[str]
    json: list[str]


def read_strings(state: Any) -> Reading:
    """The string values of a state in their order, at most `2 * MAX_VALUES` of its values visited.

    A larger state is read from both ends. The `role` of a message and the `type` of a content part are left out
    where they are the customary words. A string that is JSON gives its own string values instead.
    """
    reading = Reading([], [])
    for value in _values(state):
        if not isinstance(value, str):
            continue
        inside = _parse_json(value)
        if inside is None:
            reading.strings.append(value)
        else:
            reading.json.append(value)
            reading.strings.extend(item for item in _values(inside) if isinstance(item, str))
    return reading


def split_parts(text: str) -> list[str]:
    """The different lines and sentences of a text in their order, each at most `PART_CHARACTERS` long.

    Of a text longer than `2 * MAX_CHARACTERS` its start, its end and `SAMPLES` pieces between them, and never more
    than `2 * MAX_PARTS`.
    """
    if len(text) <= 2 * MAX_CHARACTERS:
        parts = _split(text)
    else:
        parts = [*_split(text[:MAX_CHARACTERS]), *_samples(text), *_split(text[-MAX_CHARACTERS:])]
    parts = list(dict.fromkeys(parts))
    return parts if len(parts) <= 2 * MAX_PARTS else parts[:MAX_PARTS] + parts[-MAX_PARTS:]


def _samples(text: str) -> Iterator[str]:
    step = (len(text) - 2 * MAX_CHARACTERS) // SAMPLES
    for start in range(MAX_CHARACTERS, MAX_CHARACTERS + SAMPLES * step, max(1, step)):
        # The first and last word of a sample may be cut, so they are left out.
        words = text[start : start + PART_CHARACTERS].split()[1:-1]
        yield from _split(" ".join(words))


def _split(text: str) -> list[str]:
    parts = []
    start = 0
    for found in [*_PART_END.finditer(text), None]:
        end = found.end() if found else len(text)
        if found and end - start < SENTENCE_CHARACTERS and found["line"] is None:
            continue
        while end - start > PART_CHARACTERS:
            cut = text.rfind(" ", start + 1, start + PART_CHARACTERS) + 1 or start + PART_CHARACTERS
            parts.append(text[start:cut])
            start = cut
        if end > start:
            parts.append(text[start:end])
        start = end
    return parts


def _values(state: Any) -> list[Any]:
    head = list(itertools.islice(_walk(state, backwards=False), MAX_VALUES))
    if len(head) < MAX_VALUES:
        return head
    tail = list(itertools.islice(_walk(state, backwards=True), MAX_VALUES))
    return head + tail[::-1]


def _walk(state: Any, *, backwards: bool) -> Iterator[Any]:
    """Every value of a state, depth first; without recursion, so that no nesting is too deep."""
    stack: list[Iterator[Any]] = [iter((state,))]
    while stack:
        for value in stack[-1]:
            yield value
            inside = _children(value, backwards)
            if inside is not None:
                stack.append(inside)
                break
        else:
            stack.pop()


def _children(value: Any, backwards: bool) -> Iterator[Any] | None:
    if isinstance(value, str):
        return None
    if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 - the second alone is slow
        silent = _silent_key(value)
        keys = reversed([*value]) if backwards else iter(value)
        return (value[key] for key in keys if silent is None or key != silent)
    if isinstance(value, list | tuple):
        return reversed(value) if backwards else iter(value)
    return None


def _silent_key(value: Mapping[Any, Any]) -> str | None:
    """The key of a message or content part whose value says nothing of the text's language."""
    for key, beside, words in (("role", "content", _ROLES), ("type", "text", _CONTENT_PARTS)):
        if beside in value:
            said = value.get(key)
            if isinstance(said, str) and said in words:
                return key
    return None


def _parse_json(text: str) -> Any:
    """What a string holds if it is a JSON object or array, else None."""
    if len(text) > MAX_JSON or not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
