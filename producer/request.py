"""One prediction as a message: its shape, how it is read from a task's call, its route, what may be shown of it.

Both sides use it. Whether a request can be asked at all is `producer.request_checks`' matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, TypeGuard

from laya.catalog import canonical_name
from laya.questions import shown
from laya.routing import RouteDecision, decide
from producer.errors import Entry, InvalidRequest, UnknownCheckpoint

SCHEMA: Final = 1
"""Version of the message. It rises when an older worker would misread a message, and only then."""

SCHEMA_HEADER: Final = "laya_schema"

_SHOWN_IDS = 8  # question ids that a summary spells out
_SHOWN_ID = 40  # characters of each


class PredictionOptions(TypedDict, total=False):
    """The options of one prediction, by the names that `Router.predict` has for them; `cache` is a worker's own.

    With `cache=False` no cache of a worker is asked for the answer, and none keeps it.
    """

    model: str | None
    task: str | None
    lang: str | None
    lang_guess: str | None
    max_len: int | None
    head_max_len: int | None
    min_confidence: float | Mapping[str, float] | None
    cache: bool | None


class AskingOptions(PredictionOptions, total=False):
    """What a backend may say beside: whose request it is, which travels signed and not as an option; the task's id."""

    tenant: str | None
    task_id: str


OPTIONS: Final = tuple(PredictionOptions.__annotations__)
_OPTIONS: Final = frozenset(OPTIONS)
TEXT_OPTIONS: Final = ("model", "task", "lang", "lang_guess")


@dataclass(frozen=True, slots=True, repr=False)
class PredictionRequest:
    """A state, its questions, and the options that were given; `options` has no None in it."""

    state: Any
    questions: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_request(self) -> dict[str, Any]:
        """The request as one mapping, as a list of requests holds it."""
        return {"state": self.state, "questions": self.questions, **self.options}

    @property
    def router_options(self) -> dict[str, Any]:
        """The options that a Router takes."""
        return {name: value for name, value in self.options.items() if name != "cache"}

    @property
    def may_be_cached(self) -> bool:
        """Whether a cache may answer it and keep its answer."""
        return self.options.get("cache") is not False

    def __repr__(self) -> str:
        """Without a text of the state or the questions: a repr ends in logs and tracebacks."""
        return f"{type(self).__name__}{summary(self) if isinstance(self.questions, Mapping) else '(no questions)'}"


BatchItem = PredictionRequest | Entry
"""One place of a list of requests: a request, or the error that it already has."""


def read_call(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> PredictionRequest:
    """The request that a task was called with: `(state, questions, **options)`, both also by keyword.

    Raises:
        InvalidRequest: one of the two is missing or given twice, or an option is unknown.
    """
    given = dict(kwargs or {})
    for name, value in zip(("state", "questions"), args or (), strict=False):
        if name in given:
            raise InvalidRequest(f"{name} is given twice: by position and by keyword")
        given[name] = value
    if len(args or ()) > 2:
        raise InvalidRequest(f"expected a state and questions, not {len(args or ())} values; name the options")
    return from_mapping(given)


def read_batch(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Sequence[Any]:
    """The list of requests that a task was called with: `(requests)`, also by keyword.

    Raises:
        InvalidRequest: it is missing, not a list, or something else was given too.
    """
    given = dict(kwargs or {})
    if args:
        given.setdefault("requests", args[0])
    unknown = sorted(set(given) - {"requests"})
    if unknown or len(args or ()) > 1 or "requests" not in given:
        extra = f"; {', '.join(unknown)} belongs into each request" if unknown else ""
        raise InvalidRequest(f"expected one list of requests{extra}")
    requests = given["requests"]
    if not isinstance(requests, list | tuple):
        raise InvalidRequest(
            f"expected a list of requests, each a mapping with state and questions, not {type(requests).__name__}"
        )
    return requests


def is_error(item: Any) -> TypeGuard[Entry]:
    """Whether an entry of a list of requests or results is an error that was written down."""
    return isinstance(item, Mapping) and isinstance(item.get("error"), Mapping)


def route(request: PredictionRequest, names: Sequence[str], default: str) -> RouteDecision:
    """Which registered checkpoint answers, by the library's routing.

    Args:
        request: a checked request.
        names: the registered checkpoints.
        default: the one for undecided requests.

    Raises:
        UnknownCheckpoint: `model` or `task` means a checkpoint that is not registered.
        InvalidRequest: `task` names no task.
    """
    wishes = {name: request.options[name] for name in TEXT_OPTIONS if name in request.options}
    try:
        return decide(
            request.state,
            request.questions,
            **wishes,
            default=default,
            canonical=lambda name: _registered(name, names),
            repo_of=lambda name: name,
        )
    except _NotRegistered as error:
        raise UnknownCheckpoint(str(error), {"checkpoint": error.name, "known": list(names)}) from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(str(error)) from None


def question_at_fault(message: str, questions: Mapping[str, Any]) -> str | None:
    """The id of the question that a refusal of the library is about; its messages start with the name."""
    return next((id_ for id_ in questions if message.startswith(f"question {shown(id_)}")), None)


def summary(request: PredictionRequest) -> str:
    """What may be shown of a request in events and logs: question ids, the state's type and size. No text."""
    state = request.state
    if isinstance(state, str):
        size = f"text of {len(state)} character{'' if len(state) == 1 else 's'}"
    elif isinstance(state, list | tuple):
        size = f"list of {len(state)}"
    elif isinstance(state, Mapping):
        size = f"mapping of {len(state)}"
    else:
        size = type(state).__name__
    ids = [str(id_)[:_SHOWN_ID] for id_ in request.questions][:_SHOWN_IDS]
    more = len(request.questions) - len(ids)
    asked = ", ".join(ids) or "no questions"
    return f"({size}; {asked}{f' and {more} more' if more > 0 else ''})"


def shown_options(request: PredictionRequest) -> str:
    """The options of a checked request as they may be shown: they hold no text of the state."""
    return "{" + ", ".join(f"{name}={shown(value)}" for name, value in request.options.items()) + "}"


class _NotRegistered(ValueError):
    """A ValueError, as the library's routing expects of a look-up, that remembers the name."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def _registered(name: str, names: Sequence[str]) -> str:
    try:
        return canonical_name(name, names)
    except ValueError as error:
        raise _NotRegistered(str(error), str(name)) from None


def from_mapping(given: Mapping[str, Any]) -> PredictionRequest:
    """The request of a mapping with `state`, `questions` and options by name, unchecked.

    Raises:
        InvalidRequest: one of the two is missing, or an option is unknown.
    """
    options = dict(given)
    try:
        state, questions = options.pop("state"), options.pop("questions")
    except KeyError:
        missing = [name for name in ("state", "questions") if name not in given]
        raise InvalidRequest(f"a request needs a state and questions: {' and '.join(missing)} missing") from None
    if not options.keys() <= _OPTIONS:
        raise _unknown(options)
    return PredictionRequest(state, questions, {name: value for name, value in options.items() if value is not None})


def _unknown(options: Mapping[Any, Any]) -> InvalidRequest:
    if "tenant" in options:
        return InvalidRequest(
            "tenant is no option of a request: it is said where a message is published, and signed there",
            {"options": ["tenant"]},
        )
    unknown = sorted(shown(name) for name in options if name not in _OPTIONS)
    return InvalidRequest(
        f"unknown option {', '.join(unknown)}: the options are {', '.join(OPTIONS)}", {"options": unknown}
    )
