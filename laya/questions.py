"""What a caller may ask, and what is refused before anything is computed.

A mapping of question definitions becomes a tuple of :class:`Question`, each holding the texts that a
checkpoint reads. Shared by the library and by the processes that only enqueue, so it needs nothing but the
standard library; how texts become tokens is left to the checkpoint kinds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from laya.lru import LruCache, content_of

QTypeName = Literal["choice", "score", "noul"]

QTYPES: tuple[QTypeName, ...] = ("choice", "score", "noul")
"""The question types; the index of a type is its row in a checkpoint's type embedding."""

NOUL_DEFAULTS = {False: "no, the statement does not hold", True: "yes, the statement holds"}
"""What the two options of a noul say where its criteria do not."""

_known: LruCache[bytes, tuple["Question", ...]] = LruCache(2**20)
"""Questions that were read, by their content, of which it keeps so many bytes: a backend asks the same all day."""

_SHOWN = 80  # characters of a caller's value that an error message repeats


@dataclass(frozen=True, slots=True)
class Question:
    """One checked question.

    ``labels`` holds the options as an answer names them: a choice's labels as given, a score's levels
    ``0..k-1``, a noul's ``(False, True)``. ``options`` are the texts that a checkpoint reads, in the order of
    the labels, and ``descriptions`` the part after the label (``""`` where there is none). ``legend`` holds a
    score's level texts, else nothing. ``order[slot]`` is the option that stands in that slot of the sequence;
    None keeps the order.
    """

    id: str | int
    qtype: QTypeName
    instructions: str
    labels: tuple[Any, ...]
    options: tuple[str, ...]
    descriptions: tuple[str, ...]
    legend: tuple[str, ...] = ()
    order: tuple[int, ...] | None = None

    @property
    def type_index(self) -> int:
        """The row of this question's type in a type embedding: choice 0, score 1, noul 2."""
        return QTYPES.index(self.qtype)

    @property
    def k(self) -> int:
        """The number of options."""
        return len(self.options)


class _Options(NamedTuple):
    labels: tuple[Any, ...]
    options: tuple[str, ...]
    descriptions: tuple[str, ...]
    legend: tuple[str, ...] = ()


def parse_questions(questions: object) -> tuple[Question, ...]:
    """Check a mapping of question id to definition and return its questions in order.

    Raises:
        TypeError: ``questions`` is not a mapping.
        ValueError: a question cannot be asked; the message starts with its name.
    """
    if not isinstance(questions, Mapping):
        raise TypeError(f"questions must be a mapping of question id to definition, not {type(questions).__name__}")
    content = content_of(questions)
    parsed = _known.get(content) if content else None
    if parsed is None:
        parsed = tuple(_parse(id_, definition) for id_, definition in questions.items())
        if content:
            _known.put(content, parsed, len(content))
    return parsed


def check_state(state: object) -> None:
    """Refuse a state that is None.

    Raises:
        TypeError: the state is None.
    """
    if state is None:
        raise TypeError("a state must not be None: pass a text, a mapping, a list or another JSON value")


def check_states(states: object) -> None:
    """Refuse anything that is not a list or tuple of states.

    Raises:
        TypeError: ``states`` is one state (a string, bytes or a mapping), not a list, or holds None.
    """
    if isinstance(states, (str, bytes, bytearray, Mapping)):
        raise TypeError(f"states must be a list of states, not one {type(states).__name__}: wrap it in a list")
    if not isinstance(states, (list, tuple)):
        raise TypeError(f"states must be a list of states, not {type(states).__name__}")
    for position, state in enumerate(states):
        if state is None:
            raise TypeError(f"states[{position}] is None: every state must be a text or another JSON value")


def state_text(state: object) -> str:
    """The text that a checkpoint reads for a state: a string as it stands, anything else as JSON.

    Raises:
        TypeError: the state holds something that JSON cannot express.
        ValueError: the state holds itself, or is nested too deeply.
    """
    if isinstance(state, str):
        return state
    check_state(state)
    try:
        return json_text(state)
    except TypeError as error:
        raise TypeError(f"the state is not JSON: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the state is not JSON: {error}") from None


def json_text(value: object) -> str:
    """JSON on one line, other scripts as they are, separators ``", "`` and ``": "``."""
    return json.dumps(value, ensure_ascii=False)


def shown(value: object) -> str:
    """A caller's value as an error message may repeat it: its repr, cut when long; its type, where it has none."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr is the caller's code: a record whose session is closed, a huge number
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class _Where:
    """Which question an error is about, put into words when there is one."""

    __slots__ = ("_id",)

    def __init__(self, id_: object) -> None:
        self._id = id_

    def __str__(self) -> str:
        return f"question {shown(self._id)}"


def _parse(id_: object, definition: object) -> Question:
    where = _Where(id_)
    _check_id(where, id_)
    if not isinstance(definition, Mapping):
        raise ValueError(f"{where}: its definition must be a mapping, not {type(definition).__name__}")
    qtype = definition.get("type")
    if not isinstance(qtype, str) or qtype not in QTYPES:
        raise ValueError(f"{where}: type must be one of {', '.join(QTYPES)}, not {shown(qtype)}")
    instructions = _instructions(where, definition.get("instructions"))
    parts = _OPTIONS_OF[qtype](where, definition)
    order = _order(where, definition.get("option_order"), len(parts.options))
    return Question(cast("str | int", id_), qtype, instructions, *parts, order=order)


def _check_id(where: _Where, id_: object) -> None:
    if isinstance(id_, bool) or not isinstance(id_, (str, int)):
        raise ValueError(f"{where}: a question id must be a string or an integer, not {type(id_).__name__}")
    if isinstance(id_, str) and not id_.strip():
        raise ValueError(f"{where}: a question id must not be blank")


def _instructions(where: _Where, value: object) -> str:
    if value is None:
        raise ValueError(f"{where}: instructions are missing: say what is to be decided")
    if not isinstance(value, (str, list, tuple, Mapping)):
        raise ValueError(f"{where}: instructions must be a text, a list or a mapping, not {type(value).__name__}")
    if not (value.strip() if isinstance(value, str) else value):
        raise ValueError(f"{where}: instructions are blank: say what is to be decided")
    return _text(where, "instructions", value)


def _text(where: _Where, what: str, value: object) -> str:
    """A caller's value as text: a string as it stands, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {what} cannot be written as JSON: {error}") from None


def _choice(where: _Where, definition: Mapping[str, object]) -> _Options:
    _refuse_labels(where, definition)
    criteria = definition.get("criteria")
    if not isinstance(criteria, (list, tuple, Mapping)):
        raise ValueError(
            f"{where}: criteria of a choice must be a mapping of label to description or a list of labels, "
            f"not {type(criteria).__name__}"
        )
    if not criteria:
        raise ValueError(f"{where}: criteria of a choice are empty: give at least one label")
    labels = tuple(criteria)
    for label in labels:
        if not isinstance(label, (str, int, float)):
            raise ValueError(f"{where}: a label must be a string, a number or a bool, not {shown(label)}")
    if len(set(labels)) < len(labels):
        raise ValueError(f"{where}: two labels are one key: {shown(_first_repeated(labels))} occurs twice")
    given = criteria.values() if isinstance(criteria, Mapping) else [None] * len(labels)
    descriptions = tuple([_description(where, label, value) for label, value in zip(labels, given, strict=True)])
    options = tuple(
        [
            f"{label}: {description}" if description else f"{label}"
            for label, description in zip(labels, descriptions, strict=True)
        ]
    )
    return _Options(labels, options, descriptions)


def _description(where: _Where, label: object, value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _text(where, f"the description of {shown(label)}", value)


def _first_repeated(labels: Sequence[object]) -> object:
    seen = set()
    for label in labels:
        if label in seen:
            return label
        seen.add(label)
    raise AssertionError("no label is repeated")


def _score(where: _Where, definition: Mapping[str, object]) -> _Options:
    _refuse_labels(where, definition)
    criteria = definition.get("criteria")
    if not isinstance(criteria, (list, tuple)):
        raise ValueError(
            f"{where}: criteria of a score must be a list of levels, lowest first, not {type(criteria).__name__}"
        )
    if not criteria:
        raise ValueError(f"{where}: criteria of a score are empty: give at least one level")
    for level, value in enumerate(criteria):
        if value is None:
            raise ValueError(f"{where}: level {level} of the criteria is null: describe every level")
    legend = tuple(_text(where, f"level {level}", value) for level, value in enumerate(criteria))
    options = tuple(f"level {level}: {text}" for level, text in enumerate(legend))
    return _Options(tuple(range(len(legend))), options, legend, legend)


def _noul(where: _Where, definition: Mapping[str, object]) -> _Options:
    criteria = definition.get("criteria")
    if criteria is None:
        criteria = {}
    if not isinstance(criteria, Mapping):
        raise ValueError(
            f"{where}: criteria of a noul must be a mapping of true and false, not {type(criteria).__name__}"
        )
    given = _by_truth(where, "criteria", criteria)
    descriptions = tuple(
        _text(where, f"the criterion of {str(truth).lower()}", given.get(truth) or NOUL_DEFAULTS[truth])
        for truth in (False, True)
    )
    words = _noul_words(where, definition.get("labels"))
    options = tuple(f"{word}: {description}" for word, description in zip(words, descriptions, strict=True))
    return _Options((False, True), options, descriptions)


def _noul_words(where: _Where, labels: object) -> tuple[str, str]:
    """The words before the colon of a noul's two options, false first."""
    if labels is None:
        return ("false", "true")
    if not isinstance(labels, Mapping):
        raise ValueError(f"{where}: labels must be a mapping of false and true, not {type(labels).__name__}")
    given = _by_truth(where, "labels", labels)
    if len(given) < len(NOUL_DEFAULTS):
        raise ValueError(f"{where}: labels must name both false and true")
    false, true = given[False], given[True]
    if not (isinstance(false, str) and isinstance(true, str) and false.strip() and true.strip()):
        raise ValueError(f"{where}: labels must be two texts that are not blank")
    if false == true:
        raise ValueError(f"{where}: labels must be two different texts, not {shown(true)} twice")
    return (false, true)


def _by_truth(where: _Where, what: str, given: Mapping[object, object]) -> dict[bool, object]:
    """The entries of a mapping whose keys are true and false, in any case or as booleans."""
    found: dict[bool, object] = {}
    for key, value in given.items():
        name = str(key).lower() if isinstance(key, (str, bool)) else None
        if name not in ("false", "true"):
            raise ValueError(f"{where}: {what} of a noul may only have the keys true and false, not {shown(key)}")
        if (truth := name == "true") in found:
            raise ValueError(f"{where}: {what} name {name} twice")
        found[truth] = value
    return found


def _refuse_labels(where: _Where, definition: Mapping[str, object]) -> None:
    if definition.get("labels") is not None:
        raise ValueError(f"{where}: labels are for a noul only; a {definition['type']} names its options in criteria")


def _order(where: _Where, order: object, k: int) -> tuple[int, ...] | None:
    if order is None:
        return None
    wanted = f"a permutation of the {k} option indices 0 to {k - 1}"
    if not isinstance(order, (list, tuple)):
        raise ValueError(f"{where}: option_order must be {wanted}, not {type(order).__name__}")
    if any(isinstance(index, bool) or not isinstance(index, int) for index in order) or sorted(order) != list(range(k)):
        raise ValueError(f"{where}: option_order must be {wanted}, not {shown(order)}")
    return tuple(order)


_OPTIONS_OF: dict[str, Callable[[_Where, Mapping[str, object]], _Options]] = {
    "choice": _choice,
    "score": _score,
    "noul": _noul,
}
