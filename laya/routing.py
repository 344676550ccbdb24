"""Which checkpoint answers a request: the order of the caller's wishes, what the text says, and the default.

`decide` is a pure function, shared by `Router.route` and by a web backend that has no torch. It loads nothing
and runs no hooks; recognising a text's language is `laya.language`'s work, and what names stand for is
`laya.catalog`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from laya.catalog import (
    DEFAULT_MODELS,
    ENGLISH,
    MULTILINGUAL,
    TYPED_DECISIONS,
    canonical_name,
    describe_source,
)
from laya.language import Detection, detect

LangGuess = str | Callable[[Any], str | None]
"""A language code, or a callable of the state that gives one (or None when it cannot tell)."""

TASKS: Final[Mapping[str, str]] = {"typed_decisions": TYPED_DECISIONS, "typed-decisions": TYPED_DECISIONS}

WORKFLOWS: Final[Mapping[str, frozenset[str]]] = {
    "agent_trace_observability": frozenset({"action", "needs_review", "outcome", "risk", "urgency"}),
    "customer_service": frozenset({"action", "category", "churn_risk", "needs_human", "urgency"}),
    "invoice_processing": frozenset({"discrepancy_severity", "disposition", "duplicate", "matches_order", "urgency"}),
    "security_incidents": frozenset({"credential_compromise", "disposition", "severity", "true_positive", "urgency"}),
}
"""Workflow name to the question ids that make it; a request belongs to one when its ids are exactly these."""

STAND_INS: Final[Mapping[str, tuple[str, ...]]] = {ENGLISH: (MULTILINGUAL,)}
"""Checkpoint to those that may soundly answer in its place: declared, never guessed. `multilingual` has none."""

_ENGLISH_SUBTAGS: Final = frozenset({"en", "eng", "english"})
# Locale and ISO 639 codes for "no language", "undetermined" and "several": they say nothing about this text.
_SILENT_SUBTAGS: Final = frozenset({"", "*", "c", "posix", "und", "zxx", "mul"})
_SUBTAG_END: Final = re.compile(r"[-_.@,;:\s]")


class RouteDecision(dict[str, Any]):
    """What was decided for one request, as a plain mapping that can be written as JSON.

    Keys: `model` (checkpoint name), `repo` (where it comes from), `reason` (one sentence for a person, without
    any of the state's text), `detection` (a `laya.language.Detection`, or None when detection did not run),
    `workflow` (the name of the workflow whose question ids they are, when that decided, or None).
    """


class AnsweredElsewhere(Exception):
    """Raised while a request is routed: another process answers it, so it ends here without any further event."""

    def __init__(self, checkpoint: str) -> None:
        """Name the checkpoint that answers it there."""
        super().__init__(checkpoint)
        self.checkpoint = checkpoint


@dataclass(frozen=True, slots=True)
class _Choice:
    """A checkpoint name as wished, before it is looked up, and why."""

    model: str
    reason: str
    detection: Detection | None = None
    workflow: str | None = None


def decide(
    state: Any,
    questions: Any = None,
    *,
    model: str | None = None,
    task: str | None = None,
    lang: str | None = None,
    lang_guess: LangGuess | None = None,
    router_lang_guess: LangGuess | None = None,
    default: str = MULTILINGUAL,
    auto_task_detection: bool = False,
    canonical: Callable[[str], str] | None = None,
    repo_of: Callable[[str], str | None] | None = None,
) -> RouteDecision:
    """Choose the checkpoint of one request.

    The first of these that says something decides: `model`, `task`, the workflow of the question ids (only
    with `auto_task_detection`), `lang`, `lang_guess` (of the call), `router_lang_guess` (of the Router), the
    language of the state's text, `default`. What stands behind the deciding one is neither run nor checked.

    Args:
        state: what the questions are about, any shape; only its string values are read.
        questions: mapping of question id to definition; only the ids are read.
        lang_guess, router_lang_guess: a code, or a callable of the state. What the callable raises is not
            caught: a guess that fails is the caller's to mend, and going on could hide it for months.
        canonical: name or alias to the registered name, else `ValueError`; the built-in names if None.
        repo_of: registered name to a line that says where it comes from; the built-in places if None.

    A language or a workflow whose checkpoint is not registered leads to `default`, and `reason` says so.

    Raises:
        ValueError: `model`, `task` or `default` names nothing known; the message lists what is.
        TypeError: a language code is not a string.
    """
    look_up = canonical or _built_in_name
    choice = _explicit(model, task)
    if choice is None:
        wish = (_by_workflow(questions) if auto_task_detection else None) or _by_code(lang, "lang")
        wish = wish or _by_guess(lang_guess, "lang_guess", state)
        wish = wish or _by_guess(router_lang_guess, "the Router's lang_guess", state)
        choice = _or_default(wish or _by_detection(detect(state), default), default, look_up)
    name = look_up(choice.model)
    return RouteDecision(
        model=name,
        repo=(repo_of or _built_in_repo)(name),
        reason=choice.reason,
        detection=choice.detection,
        workflow=choice.workflow,
    )


def prefer_resident_stand_in(
    decision: RouteDecision, resident: Collection[str], repo_of: Callable[[str], str | None]
) -> RouteDecision:
    """The decision, or one for a resident stand-in where detection chose a checkpoint that is not resident.

    A choice that the caller made (`model`, `task`, `lang`, a guess) stands as it is.
    """
    wanted = decision["model"]
    if decision["detection"] is None or wanted in resident:
        return decision
    stand_in = next((name for name in STAND_INS.get(wanted, ()) if name in resident), None)
    if stand_in is None:
        return decision
    reason = f"{decision['reason'].rstrip('.')}; {stand_in!r} answers in its place, as {wanted!r} is not resident."
    return RouteDecision(decision | {"model": stand_in, "repo": repo_of(stand_in), "reason": reason})


def names_english(code: str) -> bool | None:
    """Whether a language code means English, or None when it says nothing.

    English when the primary subtag is `en`, `eng` or `english` in any case (`en-US`, `en_US.UTF-8`); nothing
    when it is blank, `*`, `C`, `POSIX`, `und`, `zxx` or `mul`.
    """
    primary = _SUBTAG_END.split(code.strip().lower(), maxsplit=1)[0]
    return None if primary in _SILENT_SUBTAGS else primary in _ENGLISH_SUBTAGS


def workflow_of(questions: Any) -> str | None:
    """The workflow whose question ids are exactly those of `questions`, or None."""
    if not isinstance(questions, Mapping):
        return None
    ids = frozenset(questions)
    return next((name for name, wanted in WORKFLOWS.items() if ids == wanted), None)


def _explicit(model: str | None, task: str | None) -> _Choice | None:
    if model is not None:
        return _Choice(model, f"The caller named the checkpoint: model={model!r}.")
    if task is None:
        return None
    wanted = TASKS.get(task.strip().lower()) if isinstance(task, str) else None
    if wanted is None:
        raise ValueError(f"unknown task {task!r}: expected one of {', '.join(map(repr, sorted(TASKS)))}")
    return _Choice(wanted, f"The caller named the task: task={task!r}.")


def _by_workflow(questions: Any) -> _Choice | None:
    workflow = workflow_of(questions)
    if workflow is None:
        return None
    return _Choice(TYPED_DECISIONS, f"The question ids are those of the workflow {workflow}.", workflow=workflow)


def _by_code(code: str | None, origin: str) -> _Choice | None:
    if code is None:
        return None
    if not isinstance(code, str):
        kind = type(code).__name__
        raise TypeError(f"{origin} must be a language code such as 'de' or 'en-US', or None, not {kind}")
    english = names_english(code)
    if english is None:
        return None
    if english:
        return _Choice(ENGLISH, f"The language is English by {origin}: {code!r}.")
    return _Choice(MULTILINGUAL, f"The language is not English by {origin}: {code!r}.")


def _by_guess(guess: LangGuess | None, origin: str, state: Any) -> _Choice | None:
    return _by_code(guess(state) if callable(guess) else guess, origin)


def _by_detection(found: Detection, default: str) -> _Choice:
    script, language = found["script"], found["language"] or "unknown"
    if found["language_undecided"]:
        return _Choice(default, "The language of the text is undecided, so the default answers.", found)
    if found["is_english"]:
        return _Choice(ENGLISH, f"The text reads as English ({script} script).", found)
    if found["mixed_segment"] is not None:
        return _Choice(MULTILINGUAL, f"A part of the text is not English (language {language}).", found)
    return _Choice(MULTILINGUAL, f"The text is not English (language {language}, {script} script).", found)


def _or_default(choice: _Choice, default: str, canonical: Callable[[str], str]) -> _Choice:
    """The choice, or the default where the checkpoint that a language or workflow means is not there."""
    try:
        canonical(choice.model)
    except ValueError:
        if choice.model == default:
            raise
        reason = f"{choice.reason[:-1]}, but no checkpoint {choice.model!r} is registered, so the default answers."
        return _Choice(default, reason, choice.detection, choice.workflow)
    return choice


def _built_in_name(name: str) -> str:
    return canonical_name(name, DEFAULT_MODELS)


def _built_in_repo(name: str) -> str:
    return describe_source(DEFAULT_MODELS[name])
