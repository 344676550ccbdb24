"""Dead letters: messages that no worker shall take again, kept whole beside the queues until somebody decides.

A message gets here when workers died of it, or when it cannot be read. Nothing here decides that; it keeps, lists, puts
back and drops. The whole message is kept, its state included, as it was in the queue: that is what can be sent again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from producer.app import PredictionApp
from producer.checkpoints import QUEUE_PREFIX
from producer.errors import PoisonedRequest
from producer.transport_message import OVERDUE, RETURNED
from worker.broker_scripts import ADD, DROP, ENTRIES, ONE, channel_of, run
from worker.deliveries import Deliveries

Kind = Literal["poisoned", "unreadable", "unknown task", "malformed"]
"""Workers died of it; Celery or the task cannot read it; no such task is known here; it is no message at all."""

_UNTOLD: Final[dict[str, Any]] = {
    "kind": "unreadable",
    "queue": QUEUE_PREFIX,
    "deliveries": 0,
    "at": 0.0,
    "size": 0,
    "reason": "not told",
}
"""What stands for a fact that a letter of another version does not tell; for the others None does."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What is told of a dead letter. No text of a request.

    Attributes:
        id: the task's; made up for a message that has none.
        kind: why it is here.
        queue: where it came from, and goes back to.
        task: name of the task, if the message says one.
        deliveries: how often workers began to work on it.
        at: Unix time when it was set aside.
        size: bytes of its body.
        requests, questions: how many it holds, where that can be read.
        reason: one line.
    """

    id: str
    kind: Kind
    queue: str
    task: str | None
    deliveries: int
    at: float
    size: int
    requests: int | None
    questions: int | None
    reason: str

    @property
    def checkpoint(self) -> str:
        """The checkpoint whose queue it came from; empty where that is none of a checkpoint, or not known."""
        return "" if self.queue == QUEUE_PREFIX else self.queue.removeprefix(f"{QUEUE_PREFIX}.")


class DeadLetters:
    """The dead letters of a deployment. Methods raise one of `broker_scripts.UNREACHABLE` where the server is away."""

    def __init__(self, app: PredictionApp) -> None:
        """Those on the app's broker, in its namespace."""
        self._app = app

    def add(self, letter: Letter, message: Mapping[str, Any], *, keep: int, seconds: int) -> None:
        """Keep a message; one with the same id is replaced.

        Args:
            letter: what is told of it.
            message: as kombu has it on the queue.
            keep: dead letters that are kept at most.
            seconds: how long.
        """
        with channel_of(self._app) as channel:
            entry, text = json.dumps(asdict(letter)), dumps(message)  # type: ignore[no-untyped-call]
            run(channel, ADD, self._keys("", ".entries", ".messages"), letter.id, entry, text, keep, seconds)

    def letters(self) -> list[Letter]:
        """All of them, the oldest first; what is no message at all comes last, without a time."""
        with channel_of(self._app) as channel:
            entries = run(channel, ENTRIES, self._keys("", ".entries"))
            malformed = self._malformed(channel)
        kept = [_letter(entry) for entry in entries if entry]
        return [*kept, *(_malformed_letter(id_, text) for id_, text in malformed.items())]

    def get(self, letter_id: str) -> tuple[Letter, str] | None:
        """One of them with its message as text, or None."""
        with channel_of(self._app) as channel:
            entry, text = run(channel, ONE, self._keys(".entries", ".messages"), letter_id)
            if entry and text:
                return _letter(entry), text.decode("utf-8", "replace")
            malformed = self._malformed(channel).get(letter_id)
        if malformed is None:
            return None
        return _malformed_letter(letter_id, malformed), malformed.decode("utf-8", "replace")

    def drop(self, letter_id: str) -> bool:
        """Forget one; whether it was there."""
        with channel_of(self._app) as channel:
            if run(channel, DROP, self._keys("", ".entries", ".messages"), letter_id):
                return True
            malformed = self._malformed(channel).get(letter_id)
            if malformed is None:
                return False
            with channel.conn_or_acquire() as client:
                return bool(client.lrem(*channel.prefixed([channel.malformed_key]), 0, malformed))

    def retry(self, letter_id: str) -> bool:
        """Publish one again: the same task, counted anew, its old result forgotten. Whether that could be done.

        An expiry that has passed is left out, for somebody asks for the answer now. What is no message cannot be sent.
        """
        found = self.get(letter_id)
        if found is None or found[0].kind == "malformed":
            return False
        letter, text = found
        message = _fresh(json.loads(text))
        Deliveries(self._app).forget(letter.id)
        self._app.backend.forget(letter.id)
        with channel_of(self._app) as channel:
            channel.max_queue = 0  # somebody has decided that it shall be sent
            channel._put(letter.queue, message)
            run(channel, DROP, self._keys("", ".entries", ".messages"), letter_id)
        return True

    def _malformed(self, channel: Any) -> dict[str, bytes]:
        """What was on a queue and is no message, by an id that follows from it."""
        with channel.conn_or_acquire() as client:
            texts = client.lrange(*channel.prefixed([channel.malformed_key]), 0, -1)
        return {f"malformed-{_digest(text)}": text for text in texts}

    def _keys(self, *ends: str) -> list[str]:
        return [f"{self._app.settings.namespace}.dead{end}" for end in ends]


def letter_of(message: Any, kind: Kind, reason: str, deliveries: int = 0) -> Letter:
    """What is told of a message that is set aside.

    Args:
        message: a kombu message.
        kind: why it is set aside.
        reason: one line, without text of the request.
        deliveries: how often workers have begun it.
    """
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    info = message.delivery_info if isinstance(message.delivery_info, Mapping) else {}
    requests, questions = _sizes(message)
    return Letter(
        id=task_id_of(message) or uuid(),
        kind=kind,
        queue=str(info.get("routing_key") or info.get("exchange") or QUEUE_PREFIX),
        task=_short(headers.get("task")),
        deliveries=deliveries,
        at=time.time(),
        size=len(message.body or b""),
        requests=requests,
        questions=questions,
        reason=reason,
    )


def poisoned(letter: Letter) -> PoisonedRequest:
    """The error of a request that workers died of: its id and sizes, no text."""
    sizes = {"bytes": letter.size, "requests": letter.requests, "questions": letter.questions}
    return PoisonedRequest(
        f"workers began this request {letter.deliveries} times and never finished: it is set aside as a dead letter",
        {"task_id": letter.id, "deliveries": letter.deliveries, "checkpoint": letter.checkpoint or None, **sizes},
    )


def task_id_of(message: Any) -> str | None:
    """The task's id, if the message has one that can be part of a key."""
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    return _short(headers.get("id"))


def body_of(text: str) -> Any:
    """The body of a kept message, decoded where it can be."""
    try:
        message = json.loads(text)
        body = message["body"]
        if message.get("properties", {}).get("body_encoding") == "base64":
            body = base64.b64decode(body).decode()
        return json.loads(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text


def _fresh(message: dict[str, Any]) -> dict[str, Any]:
    """A message as if it had never been delivered."""
    headers, properties = message.get("headers"), message.get("properties")
    if isinstance(headers, dict):  # what is here may be damaged in every way
        for name in ("redelivered", RETURNED, OVERDUE):
            headers.pop(name, None)
        for name in ("expires", "eta"):
            if headers.get(name):
                headers[name] = None
    if not isinstance(properties, dict):
        properties = message["properties"] = {}
    if isinstance(info := properties.get("delivery_info"), dict):
        info.pop("redelivered", None)
    properties["delivery_tag"] = uuid()
    return message


def _sizes(message: Any) -> tuple[int | None, int | None]:
    """Requests and questions of a message, where it can be read."""
    try:
        args, kwargs, _ = message.payload
        if "requests" in kwargs or (len(args) == 1 and isinstance(args[0], list)):
            requests = kwargs.get("requests", args[0] if args else [])
            return len(requests), sum(len(one.get("questions") or ()) for one in requests if isinstance(one, Mapping))
        return 1, len(kwargs["questions"] if "questions" in kwargs else args[1])
    except Exception:  # noqa: BLE001 - it may be anything
        return None, None


def _short(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable() else None


def _letter(entry: bytes | str) -> Letter:
    """A letter as it was kept; what another version adds is left out."""
    kept: dict[str, Any] = json.loads(entry)
    facts: dict[str, Any] = {each.name: kept.get(each.name, _UNTOLD.get(each.name)) for each in fields(Letter)}
    return Letter(**facts)


def _malformed_letter(letter_id: str, text: bytes) -> Letter:
    return Letter(letter_id, "malformed", QUEUE_PREFIX, None, 0, 0.0, len(text), None, None, "it is no message")


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
