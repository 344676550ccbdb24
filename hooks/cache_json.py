"""JSON that keeps every type and every order, for keys and values of a cache.

Plain JSON makes the mapping keys `1` and `"1"` one, and a tuple a list; here no two values that a checkpoint could
tell apart are one text. What JSON cannot express has no text at all.
"""

from __future__ import annotations

import json
from typing import Any, Final

from laya.lru import LruCache, content_of

PLAIN: Final = "plain"
"""Form of a value made of lists, dicts with texts as keys, texts, numbers, booleans and None: JSON as it is."""

TAGGED: Final = "tagged"
"""Form of a value with tuples or with other keys: each list, tuple and dict is a list that begins with its kind."""

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})

_TEXTS: Final = frozenset({str})

_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_known: Final[LruCache[bytes, tuple[str, bytes]]] = LruCache(2**20)
"""Forms and texts of values that come again and again, by their content; so many bytes of both."""


class NotJson(ValueError):
    """The value holds something that JSON cannot express."""


def dumps(value: Any) -> tuple[str, bytes]:
    """The form and the text of a value. Equal texts of one form mean values of equal types, content and order.

    Raises:
        NotJson: it holds another type (subclasses of the plain ones count as others), or itself, or nests too deeply.
    """
    try:
        text = _text(value)  # first, because it notices a value that holds itself
        if not _is_plain(value):
            return TAGGED, _text(_tagged(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {type(error).__name__}") from None
    return PLAIN, text


def dumps_repeated(value: Any) -> tuple[str, bytes]:
    """What `dumps` does, for a value that comes again and again: its text is made once."""
    content = content_of(value)
    if not content:  # nothing that has a text
        return dumps(value)
    known = _known.get(content)
    if known is None:
        known = dumps(value)
        _known.put(content, known, len(content) + len(known[1]))
    return known


def loads(form: str, text: bytes) -> Any:
    """The value that `dumps` was given.

    Raises:
        NotJson: the text is none of that form.
    """
    try:
        value = _DECODER.decode(text.decode("utf-8", "surrogatepass"))
        if form == PLAIN:
            return value
        if form == TAGGED:
            return _untagged(value)
    except (TypeError, ValueError, KeyError, IndexError, RecursionError) as error:
        raise NotJson(f"not JSON: {type(error).__name__}") from None
    raise NotJson(f"no form of JSON here: {form!r}")


def _text(value: Any) -> bytes:
    # Half a surrogate pair is a text to Python; UTF-8 has no bytes for it unless told to pass it.
    return _ENCODER.encode(value).encode("utf-8", "surrogatepass")


def _is_plain(value: Any) -> bool:
    """Whether plain JSON keeps all of it; exact types, since a subclass may render as it likes."""
    if type(value) in _LEAVES:
        return True
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) is dict:
            if not _TEXTS.issuperset(map(type, one)):
                return False
            one = one.values()
        elif type(one) is not list:
            return False
        # A leaf never waits: most of what there is are leaves.
        if not _LEAVES.issuperset(map(type, one)):
            waiting.extend([entry for entry in one if type(entry) not in _LEAVES])
    return True


def _tagged(value: Any) -> Any:
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is dict:
        return ["dict", *([_tagged(key), _tagged(entry)] for key, entry in value.items())]
    if kind is list or kind is tuple:
        return [kind.__name__, *map(_tagged, value)]
    raise NotJson(f"not JSON: a value of type {kind.__name__}")


def _untagged(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, *entries = value
    if kind == "dict":
        return {_untagged(key): _untagged(entry) for key, entry in entries}
    if kind == "tuple":
        return tuple(map(_untagged, entries))
    if kind == "list":
        return list(map(_untagged, entries))
    raise NotJson("not JSON of this form")
