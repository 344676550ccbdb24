"""What logs and events may tell of an error, and of a text that came with a message.

An error that a state caused often repeats it. So the class is told, where in the code it happened, and the text only of
errors that hold none of a request. Where that is applied is `worker.logs`' and `worker.messages`' matter.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

from celery.exceptions import BackendError, NotRegistered
from kombu.exceptions import ContentDisallowed
from redis import exceptions as redis

from laya.questions import shown
from producer.errors import (
    BrokerUnavailable,
    CheckpointUnavailable,
    DeadlineExceeded,
    InvalidRequest,
    PayloadTooLarge,
    PoisonedRequest,
    PredictionFailed,
    QueueFull,
    UnknownCheckpoint,
)

NOT_SHOWN: Final = "(not shown)"

LONGEST: Final = 1000
"""Characters of one text of others in a line of the log."""

# Their texts are ours: names of checkpoints, sizes, times, addresses of servers.
_TELLING: Final = (
    *(BrokerUnavailable, CheckpointUnavailable, DeadlineExceeded),
    *(PayloadTooLarge, PoisonedRequest, QueueFull, UnknownCheckpoint),
    *(BackendError, ContentDisallowed, NotRegistered, redis.ConnectionError, redis.TimeoutError),
)

_FRAMES: Final = 40  # innermost frames of one error
_CHAIN: Final = 8  # errors that caused one another
_HEADING: Final = "Traceback (most recent call last; texts of errors are not shown, see LAYA_EVENTS_SHOW_STATE):\n"
_BECAUSE: Final = "\nwhich led to\n\n"


def told(error: BaseException) -> str:
    """An error on one line: its class, and what is known to hold no text of a request."""
    name = type(error).__name__
    if isinstance(error, _TELLING):
        return escaped(f"{name}: {error}")
    if isinstance(error, InvalidRequest) and error.question is not None:
        return escaped(f"{name} (question {shown(error.question)})")
    if isinstance(error, PredictionFailed) and error.cause:
        return escaped(f"{name} ({error.cause})")
    inner = error.args[0] if error.args else None  # a decoder's error wraps that of the library below
    return f"{name} ({type(inner).__name__})" if isinstance(inner, BaseException) else name


def places(error: BaseException, trace: TracebackType | None = None) -> str:
    """Where an error and those that caused it were raised, as a traceback that tells of each what :func:`told` does.

    Args:
        error: the error.
        trace: where it was raised, if it does not say so itself.
    """
    chain = list(_chain(error))
    return _BECAUSE.join(_told_with_frames(each, trace if each is error else None) for each in reversed(chain))


def escaped(text: str) -> str:
    """A text of others on one line that no terminal acts upon: cut, and what cannot be printed is spelled out."""
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in cut
    )


def unwrapped(error: Any) -> Any:
    """The error itself: what crosses from a pool to its worker may be packed with its traceback."""
    return getattr(error, "exc", error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, the one that caused it, and so on."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen and len(seen) < _CHAIN:
        seen.add(id(following))
        yield following
        context = None if following.__suppress_context__ else following.__context__
        following = following.__cause__ or context


def _told_with_frames(error: BaseException, trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(error.__traceback__ or trace, limit=-_FRAMES)
    members = ", ".join(told(each) for each in error.exceptions) if isinstance(error, BaseExceptionGroup) else ""
    return f"{_HEADING}{''.join(frames.format())}{told(error)}{f' of {members}' if members else ''}"
