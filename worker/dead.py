"""Dead letters: messages that no worker shall take again, kept whole beside the queues until somebody decides.

A message gets here when workers died of it, or when it cannot be read. Nothing here decides that; it keeps, lists, puts
back and drops. The whole message is kept, its state included, as it was in the queue: that is what can be sent again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid
from redis.exceptions import RedisError

from producer.app import PredictionApp
from producer.checkpoints import QUEUE_PREFIX
from producer.transport_message import RETURNED

Kind = Literal["poisoned", "unreadable", "unknown task", "malformed"]
"""Workers died of it; Celery or the task cannot read it; no such task is known here; it is no message at all."""

ADD: Final = """#!lua flags=allow-oom
-- Keep a dead letter; those that are too old or too many go.
-- KEYS: index by the time until which they are kept, entries, messages
-- ARGV: id, entry, message, how many are kept, seconds for which
local now = tonumber(redis.call('TIME')[1])
local late = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)
redis.call('ZADD', KEYS[1], now + ARGV[5], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
local many = redis.call('ZCARD', KEYS[1]) - ARGV[4]
if many > 0 then
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, many - 1)) do late[#late + 1] = id end
end
for _, id in ipairs(late) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
end
for place = 1, 3 do redis.call('EXPIRE', KEYS[place], ARGV[5]) end
return 1
"""

ENTRIES: Final = """
-- The entries that are still kept, oldest first.
-- KEYS: index, entries
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], redis.call('TIME')[1], '+inf')
local found = {}
for _, id in ipairs(ids) do found[#found + 1] = redis.call('HGET', KEYS[2], id) end
return found
"""

ONE: Final = """
-- An entry and its message, or nothing.
-- KEYS: entries, messages
-- ARGV: id
return {redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[1])}
"""

DROP: Final = """
-- Forget a dead letter; whether it was there.
-- KEYS: index, entries, messages
-- ARGV: id
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[3], ARGV[1])
"""

COUNT_S: Final = 86_400
"""Seconds for which a count of deliveries is kept: longer than a message waits between two of them."""

BEGIN: Final = """#!lua flags=allow-oom
-- Count that a message is begun once more; how often it is begun then, or 0 if it must not be.
-- KEYS: the count, how often each request in it was begun alone and not finished
-- ARGV: how often it may be begun, seconds to keep the count
local begun = 1 + (tonumber(redis.call('GET', KEYS[1])) or 0)  -- the first time counts nothing
local most = tonumber(ARGV[1])
for _, times in ipairs(redis.call('HVALS', KEYS[2])) do most = most + times end  -- those count by themselves
if begun >= most then return 0 end
redis.call('SET', KEYS[1], begun, 'EX', ARGV[2])
return begun + 1
"""

BEGIN_ONE: Final = """#!lua flags=allow-oom
-- Count that one request of a message is begun alone; 0 if it must not be.
-- KEYS: how often each was begun alone and not finished
-- ARGV: its place, how often it may be begun, with the others and alone, seconds to keep the counts
if 1 + (tonumber(redis.call('HGET', KEYS[1], ARGV[1])) or 0) >= tonumber(ARGV[2]) then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""

FINISH_ONE: Final = """
-- KEYS: as above
-- ARGV: its place
return redis.call('HDEL', KEYS[1], ARGV[1])
"""

FORGET: Final = """
-- KEYS: both counts
return redis.call('DEL', KEYS[1], KEYS[2])
"""

UNREACHABLE: Final = (OperationalError, RedisError, OSError)
"""What counting or keeping fails with where the server is away."""


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
        """The checkpoint whose queue it came from; the queue's name where it is none of a checkpoint."""
        return self.queue.removeprefix(f"{QUEUE_PREFIX}.")


class DeadLetters:
    """The dead letters of a deployment, and the counts of deliveries that lead to them."""

    def __init__(self, app: PredictionApp) -> None:
        """Those on the app's broker, in its namespace."""
        self._app = app
        self._prefix = app.settings.namespace

    # --- counting ---

    def begin(self, task_id: str, at_most: int) -> int:
        """Count that a message which was delivered before is begun; the number of this delivery.

        Returns 0, and counts nothing, where workers have begun it `at_most` times already.

        Raises:
            redis.exceptions.RedisError, kombu.exceptions.OperationalError: it could not be counted.
        """
        with self._channel() as channel:
            return int(self._eval(channel, BEGIN, self._counts(task_id), at_most, COUNT_S))

    def forget(self, task_id: str) -> None:
        """Forget how often a message was begun: it was answered, or given back."""
        with self._channel() as channel:
            self._eval(channel, FORGET, self._counts(task_id))

    def begin_one(self, task_id: str, place: int, at_most: int) -> bool:
        """Count that one request of such a message is begun alone; False where it has been begun often enough."""
        with self._channel() as channel:
            return bool(self._eval(channel, BEGIN_ONE, self._counts(task_id)[1:], place, at_most, COUNT_S))

    def finish_one(self, task_id: str, place: int) -> None:
        """It was answered: it kills nobody."""
        with self._channel() as channel:
            self._eval(channel, FINISH_ONE, self._counts(task_id)[1:], place)

    # --- keeping ---

    def add(self, letter: Letter, message: Mapping[str, Any], *, keep: int, seconds: int) -> None:
        """Keep a message; one with the same id is replaced.

        Args:
            letter: what is told of it.
            message: as kombu has it on the queue.
            keep: dead letters that are kept at most.
            seconds: how long.
        """
        with self._channel() as channel:
            entry, text = json.dumps(asdict(letter)), json.dumps(message)
            self._eval(channel, ADD, self._keys("", ".entries", ".messages"), letter.id, entry, text, keep, seconds)

    def letters(self) -> list[Letter]:
        """All of them, the oldest first; what is no message at all comes last, without a time."""
        with self._channel() as channel:
            entries = self._eval(channel, ENTRIES, self._keys("", ".entries"))
            malformed = self._malformed(channel)
        kept = [Letter(**json.loads(entry)) for entry in entries if entry]
        return [*kept, *(_malformed_letter(id_, text) for id_, text in malformed.items())]

    def get(self, letter_id: str) -> tuple[Letter, str] | None:
        """One of them with its message as text, or None."""
        with self._channel() as channel:
            entry, text = self._eval(channel, ONE, self._keys(".entries", ".messages"), letter_id)
            if entry and text:
                return Letter(**json.loads(entry)), text.decode("utf-8", "replace")
            malformed = self._malformed(channel).get(letter_id)
        if malformed is None:
            return None
        return _malformed_letter(letter_id, malformed), malformed.decode("utf-8", "replace")

    def drop(self, letter_id: str) -> bool:
        """Forget one; whether it was there."""
        with self._channel() as channel:
            if self._eval(channel, DROP, self._keys("", ".entries", ".messages"), letter_id):
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
        self.forget(letter.id)
        self._app.backend.forget(letter.id)
        with self._channel() as channel:
            channel.max_queue = 0  # somebody has decided that it shall be sent
            channel._put(letter.queue, message)
            self._eval(channel, DROP, self._keys("", ".entries", ".messages"), letter_id)
        return True

    def _malformed(self, channel: Any) -> dict[str, bytes]:
        """What was on a queue and is no message, by an id that follows from it."""
        with channel.conn_or_acquire() as client:
            texts = client.lrange(*channel.prefixed([channel.malformed_key]), 0, -1)
        return {f"malformed-{_digest(text)}": text for text in texts}

    def _counts(self, task_id: str) -> list[str]:
        return [f"{self._prefix}.delivered.{task_id}", f"{self._prefix}.delivered.{task_id}.requests"]

    def _keys(self, *ends: str) -> list[str]:
        return [f"{self._prefix}.dead{end}" for end in ends]

    def _eval(self, channel: Any, script: str, keys: Sequence[str], *arguments: Any) -> Any:
        with channel.conn_or_acquire() as client:
            return client.eval(script, len(keys), *channel.prefixed(keys), *arguments)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self._app.connection_or_acquire() as connection:
            yield connection.default_channel


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
    headers, properties = message.get("headers") or {}, message.get("properties") or {}
    for name in ("redelivered", RETURNED):
        headers.pop(name, None)
    for name in ("expires", "eta"):
        if headers.get(name):
            headers[name] = None
    properties.get("delivery_info", {}).pop("redelivered", None)
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


def _malformed_letter(letter_id: str, text: bytes) -> Letter:
    return Letter(letter_id, "malformed", QUEUE_PREFIX, None, 0, 0.0, len(text), None, None, "it is no message")


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
