"""What workers tell each other through the broker's server: who holds and loads what, who claims what, what waits.

`exchange` is a worker's heartbeat: one script that tells and asks everything, so that a worker at rest sends
one command a second. `read` is a look from outside, for people. Every key is under the namespace and expires by itself:
a worker that dies is forgotten within `LIFETIME_S`. What to make of it all is `worker.placement`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from redis.exceptions import NoScriptError

from producer.app import PRIORITY_STEPS
from producer.checkpoints import queue_of
from worker.announcement_script import EXCHANGE, EXCHANGE_SHA
from worker.placement_view import Demand

LIFETIME_S: Final = 5.0
"""Seconds after which what a worker told is forgotten: five heartbeats, so that a slow one is not taken for dead."""

CLAIM_S: Final = 5.0
"""Seconds for which a claim stands without being renewed."""

ENTRY_BYTES: Final = 16 * 1024
"""Bytes of a worker's entry; one that would be longer leaves out what it holds."""

_ANSWERS: Final = 8  # values that the script returns for a checkpoint


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """What a worker tells about itself. Times are Unix seconds of its own clock.

    Attributes:
        id: node name and process id; `node` alone is what Celery's control commands take.
        started: when it began to serve.
        serves: checkpoints that it may serve.
        holds, loading: checkpoint to the time since when.
        pinned: those that are never evicted.
        capacity: how much it may hold, as its setting says: `2` or `6GiB`.
        at_work: requests in hand.
        rates: checkpoint to requests answered a second, over the last seconds.
        reads: checkpoints whose queues it reads now, in order.
    """

    id: str
    node: str
    host: str
    pid: int
    started: float
    capacity: str = ""
    serves: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    holds: Mapping[str, float] = field(default_factory=dict)
    loading: Mapping[str, float] = field(default_factory=dict)
    at_work: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    reads: tuple[str, ...] = ()

    def as_json(self) -> str:
        """The entry as it is kept, never longer than `ENTRY_BYTES`."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        if len(text) > ENTRY_BYTES:
            text = json.dumps(asdict(WorkerEntry(self.id, self.node, self.host, self.pid, self.started)))
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerEntry:
        """Read an entry; fields of another version are left out.

        Raises:
            ValueError: it is none.
        """
        try:
            facts = {name: value for name, value in json.loads(text).items() if name in cls.__slots__}
            facts |= {name: tuple(facts[name]) for name in ("serves", "pinned", "reads") if name in facts}
            return cls(**facts)
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no worker's entry: {error}") from error


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """What waits for a checkpoint, and who sees to it: worker ids. Ages are seconds, `rate` answers a second."""

    checkpoint: str
    depth: int
    age: float
    rate: float
    holders: tuple[str, ...]
    loaders: tuple[str, ...]
    failed: tuple[str, ...]
    claimed_by: str | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything announced at one moment; `at` is the server's time."""

    at: float
    workers: tuple[WorkerEntry, ...]
    queues: tuple[QueueEntry, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker tells of one checkpoint at a heartbeat.

    Attributes:
        holds, loads: 1 announces it, -1 takes the announcement back, 0 says nothing.
        done: requests for it answered since the last heartbeat.
        claim: make or keep the claim, give it up, or neither.
        failed_s: seconds for which it will not be tried here again; 0 says nothing, -1 takes it back.
    """

    holds: int = 0
    loads: int = 0
    done: int = 0
    claim: Literal["keep", "drop", ""] = ""
    failed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What a heartbeat brought back: the server's time, live workers, the claims of this worker, what waits."""

    at: float
    workers: int
    claims: frozenset[str]
    demand: Mapping[str, Demand]


class Keys:
    """The keys of a namespace. Bounded: a handful for each checkpoint and one for each live worker."""

    def __init__(self, namespace: str) -> None:
        """Name the namespace, such as `laya`."""
        self._namespace = namespace
        self.workers = f"{namespace}.workers"

    def worker(self, worker: str) -> str:
        """Entry of a worker: a string of JSON."""
        return f"{self._namespace}.worker.{worker}"

    def of(self, kind: Literal["holds", "loads", "fails", "claim", "demand"], checkpoint: str) -> str:
        """Key of a checkpoint: sorted sets of workers by the time until when it counts, a string, a hash."""
        return f"{self._namespace}.{kind}.{checkpoint}"

    def all_of(self, checkpoint: str) -> list[str]:
        """The keys that the script takes for a checkpoint, its queue's lists among them."""
        own = [self.of(kind, checkpoint) for kind in ("holds", "loads", "fails", "claim", "demand")]
        return own + lists_of(checkpoint)


def lists_of(checkpoint: str) -> list[str]:
    """The lists of a checkpoint's queue, one for each priority step, as kombu names them."""
    queue = queue_of(checkpoint)
    return [f"{queue}\x06\x16{step}" if step else queue for step in PRIORITY_STEPS]


def exchange(
    client: Any, namespace: str, worker: str, entry: WorkerEntry | None, told: Mapping[str, Told], prefix: str = ""
) -> Heard:
    """Tell and ask everything, in one command.

    Args:
        client: a client of the broker's server.
        namespace: of the deployment.
        worker: id of the worker; empty for somebody who only asks.
        entry: the worker's own, None to leave.
        told: what is told of each checkpoint that is asked for.
        prefix: of every key, where the broker's transport has one.

    Raises:
        redis.exceptions.RedisError: the server could not be asked.
    """
    keys = Keys(namespace)
    names = [keys.workers, keys.worker(worker)]
    for checkpoint in told:
        names += keys.all_of(checkpoint)
    text = json.dumps(
        {
            "worker": worker,
            "entry": entry.as_json() if entry else "",
            "leave": bool(worker) and entry is None,
            "life": LIFETIME_S,
            "claim": CLAIM_S,
            "lists": len(PRIORITY_STEPS),
            "told": [[one.holds, one.loads, one.done, one.claim, one.failed_s] for one in told.values()],
        }
    )
    arguments = [len(names), *(prefix + name for name in names), text]
    try:
        reply = client.execute_command("EVALSHA", EXCHANGE_SHA, *arguments)
    except NoScriptError:
        reply = client.execute_command("EVAL", EXCHANGE, *arguments)
    return _heard(reply, list(told))


def _heard(reply: Sequence[Any], checkpoints: Sequence[str]) -> Heard:
    demand, claims = {}, set()
    for place, checkpoint in enumerate(checkpoints):
        first = 2 + place * _ANSWERS
        depth, age, holders, loaders, rate, claim, failures, quiet = reply[first : first + _ANSWERS]
        demand[checkpoint] = Demand(
            depth, float(age), holders, loaders, float(rate), claim == 2, failures, float(quiet)
        )
        if claim == 1:
            claims.add(checkpoint)
    return Heard(float(reply[0]), reply[1], frozenset(claims), demand)


def read(client: Any, namespace: str, checkpoints: Sequence[str], prefix: str = "") -> Fleet:
    """Look at everything announced, and at what waits, for the checkpoints named.

    Args:
        client: a client of the broker's server, redis-py's.
        namespace: `LAYA_NAMESPACE` of the deployment.
        checkpoints: names to look at.
        prefix: of every key, where the broker's transport has one.

    Raises:
        redis.exceptions.RedisError: the server could not be asked.
    """
    keys = Keys(namespace)
    heard = exchange(client, namespace, "", None, {name: Told() for name in checkpoints}, prefix)
    with client.pipeline(transaction=False) as pipe:
        pipe.zrangebyscore(prefix + keys.workers, heard.at, "+inf")
        for name in checkpoints:
            for kind in ("holds", "loads", "fails"):
                pipe.zrangebyscore(prefix + keys.of(kind, name), heard.at, "+inf")
            pipe.get(prefix + keys.of("claim", name))
        workers, *rest = pipe.execute()
    queues = [
        _queue_entry(name, heard.demand[name], rest[place * 4 : place * 4 + 4])
        for place, name in enumerate(checkpoints)
    ]
    ids = _texts(workers)
    texts = client.mget([prefix + keys.worker(one) for one in ids]) if ids else []
    entries = [WorkerEntry.from_json(text) for text in texts if text]
    return Fleet(heard.at, tuple(sorted(entries, key=lambda one: one.id)), tuple(queues))


def _queue_entry(checkpoint: str, demand: Demand, replies: Sequence[Any]) -> QueueEntry:
    """What waits for a checkpoint, and what the server has said of its holders, loaders, failures and claim."""
    holders, loaders, failed, claim = replies
    return QueueEntry(
        checkpoint,
        demand.depth,
        demand.age,
        demand.rate,
        _texts(holders),
        _texts(loaders),
        _texts(failed),
        _text(claim) if claim else None,
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _texts(values: Sequence[bytes | str]) -> tuple[str, ...]:
    return tuple(sorted(map(_text, values)))
