"""What can travel: a value as pure JSON, checked part by part, so that a refusal names the part.

Python's own encoder takes more than JSON (NaN), less than callers pass (mappings of other types), and names
nothing when it refuses. What a request must hold besides is `producer.request_checks`' work.
"""

from __future__ import annotations

import json
import marshal
import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from laya.lru import LruCache, content_of
from laya.questions import shown
from producer.errors import InvalidRequest, PayloadTooLarge
from producer.limits import Limits

# kombu turns a mapping with exactly these keys into an object of another type on the other side.
_RESERVED: Final = {"__type__", "__value__"}

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_known: Final[LruCache[tuple[bytes, int, int], int]] = LruCache(2**20)
"""Characters of values that were found plain, by their content and the limits that it kept; so many bytes of them."""

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


class _Unusual(Exception):
    """A value that is no plain JSON, or beyond a limit."""


class JsonForm:
    """Turns the parts of one message into pure JSON, and counts their text against the message's limits."""

    def __init__(self, limits: Limits) -> None:
        """Start a message."""
        self.limits = limits
        self._characters = 0

    @property
    def full(self) -> bool:
        """Whether more text was seen than the message may hold."""
        return self._characters > self.limits.payload

    def bound(self, value: Any, where: str) -> None:
        """Refuse what has more parts or levels than a message may, before anything is made of it.

        A list that stands in itself or many times in others (an alias of YAML) is small, and without end once written.

        Raises:
            InvalidRequest: it is nested too deeply.
            PayloadTooLarge: it has more parts than the message may have bytes.
        """
        most, parts, level = self.limits.payload, 0, [value]
        for _ in range(self.limits.depth + 1):
            following: list[Any] = []
            for one in level:
                kind = type(one)
                if kind is dict:
                    inside = one.values()
                elif kind is list or kind is tuple:
                    inside = one
                elif isinstance(one, Mapping | list | tuple):  # which may say wrongly how long it is
                    inside = tuple(islice(one.values() if isinstance(one, Mapping) else one, most + 1))
                else:
                    continue
                parts += len(inside)
                if parts > most:
                    raise too_large(parts, most)
                following += [part for part in inside if type(part) not in _SCALARS]
            if not following:
                return
            level = following
        raise too_deep(where, self.limits)

    def of(self, value: Any, where: str, depth: int = 0) -> Any:
        """The value as dicts with string keys, lists, strings, finite numbers, bools and None.

        Args:
            value: any value; mappings become dicts, tuples become lists.
            where: what to call it in an error.
            depth: levels above it.

        Raises:
            InvalidRequest: a part is not JSON, or is nested too deeply.
            PayloadTooLarge: the text seen so far is longer than the message may be, or one text than a text may be.
        """
        seen = self._characters
        try:
            return self._plain(value, depth)
        except _Unusual:
            self._characters = seen
        return self._named(value, where, depth)

    def of_repeated(self, value: Any, where: str) -> Any:
        """What `of` does, for what comes again and again: what was found plain once is not looked through anew."""
        content = content_of(value)
        if not content:  # nothing that is plain
            return self.of(value, where)
        known = content, self.limits.depth, self.limits.text
        characters = _known.get(known)
        if characters is not None and self._characters + characters <= self.limits.payload:
            self._characters += characters
            return marshal.loads(content)  # noqa: S302 - made a few lines above
        seen = self._characters
        try:
            found = self._plain(value, 0)
        except _Unusual:
            self._characters = seen
            return self._named(value, where, 0)
        _known.put(known, self._characters - seen, len(content))
        return found

    def _plain(self, value: Any, depth: int) -> Any:
        """A copy of what is pure JSON within its limits, as nearly everything is: at a third of what names cost.

        Raises:
            _Unusual: it is something else, or more.
        """
        kind = type(value)
        if kind is str:
            return self._plain_text(value)
        if kind is dict and depth < self.limits.depth:
            found = {
                self._plain_text(key): self._plain_text(item) if type(item) is str else self._plain(item, depth + 1)
                for key, item in value.items()
            }
            if len(found) == len(_RESERVED) and found.keys() == _RESERVED:
                raise _Unusual
            return found
        if kind is list and depth < self.limits.depth:
            self._characters += len(value)
            if self.full:
                raise _Unusual
            return [
                self._plain_text(item)
                if type(item) is str
                else item
                if type(item) is int
                else self._plain(item, depth + 1)
                for item in value
            ]
        if value is None or kind is int or kind is bool or (kind is float and math.isfinite(value)):
            return value
        raise _Unusual

    def _plain_text(self, value: Any) -> str:
        if type(value) is not str:
            raise _Unusual
        size = len(value)
        self._characters += size
        if size > self.limits.text or self._characters > self.limits.payload:
            raise _Unusual
        return value

    def _named(self, value: Any, where: str, depth: int) -> Any:
        """What `of` does, with a name for each part."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, str):
            self._count_text(len(value), where)
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidRequest(f"{where} is not JSON: {value!r} is no number there; send null instead")
            return value
        if depth >= self.limits.depth:
            raise too_deep(where.partition(".")[0].partition("[")[0], self.limits)
        if isinstance(value, Mapping):
            return self._mapping(value, where, depth)
        if isinstance(value, list | tuple):
            self._count(len(value))
            # A number has no parts that an error could name: a list of a million costs no million names.
            return [
                item if type(item) is int else self._named(item, f"{where}[{index}]", depth + 1)
                for index, item in enumerate(islice(value, len(value)))
            ]
        raise InvalidRequest(
            f"{where} is not JSON: it holds a value of type {type(value).__name__}; "
            "send text, numbers, booleans, null, lists and mappings"
        )

    def _mapping(self, value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in value.items():
            name = _key(key, where)
            if name in found:
                raise InvalidRequest(f"{where} has two keys that are one in JSON: {shown(name)}")
            self._count_text(len(name), f"a key of {where}")
            found[name] = self._named(item, f"{where}.{shown(name)}", depth + 1)
        if found.keys() == _RESERVED:
            raise InvalidRequest(
                f"{where} has exactly the keys __type__ and __value__, which mean something else on the queue: "
                "rename one"
            )
        return found

    def _count(self, characters: int) -> None:
        self._characters += characters
        if self.full:
            raise too_large(self._characters, self.limits.payload)

    def _count_text(self, characters: int, where: str) -> None:
        self._count(characters)
        if characters > self.limits.text:
            raise PayloadTooLarge(
                f"{where} has {characters} characters, and LAYA_MAX_TEXT allows {self.limits.text}",
                {"setting": "LAYA_MAX_TEXT", "size": characters, "limit": self.limits.text},
            )


def size_of(value: Any, limit: int) -> int:
    """The bytes of pure JSON in UTF-8, other scripts as they are.

    Raises:
        InvalidRequest: a text holds half a surrogate pair, or a number has thousands of digits.
        PayloadTooLarge: more than `limit`.
    """
    try:
        size = len(_ENCODER.encode(value).encode())
    except UnicodeEncodeError:
        raise InvalidRequest("a text holds half of a surrogate pair, which UTF-8 cannot express") from None
    except ValueError as error:
        raise InvalidRequest(f"the request is not JSON: {error}") from None
    if size > limit:
        raise too_large(size, limit)
    return size


def too_large(size: int, limit: int) -> PayloadTooLarge:
    """The error for a message of at least `size` bytes where `limit` are allowed."""
    return PayloadTooLarge(
        f"the request has {size} bytes or more, and LAYA_MAX_PAYLOAD allows {limit}",
        {"setting": "LAYA_MAX_PAYLOAD", "size": size, "limit": limit},
    )


def too_deep(where: str, limits: Limits) -> InvalidRequest:
    """The error for a value that is nested more deeply than a message may be."""
    return InvalidRequest(
        f"{where} is nested more than {limits.depth} levels deep, and LAYA_MAX_DEPTH allows no more: flatten it",
        {"setting": "LAYA_MAX_DEPTH", "limit": limits.depth},
    )


def _key(key: Any, where: str) -> str:
    """A mapping's key as JSON spells it."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int) or (isinstance(key, float) and math.isfinite(key)):
        try:
            return json.dumps(key)
        except ValueError:
            raise InvalidRequest(f"{where} is not JSON: a key is a number of thousands of digits") from None
    raise InvalidRequest(f"{where} is not JSON: a key has the type {type(key).__name__}; use texts as keys")
