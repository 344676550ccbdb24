"""The scripts about deliveries and dead letters that workers run on the broker's server, and how one is run.

Each changes several keys in one step, so that a worker which dies in between leaves nothing half done. What is counted
and why is `worker.deliveries`' matter, what a dead letter holds `worker.dead`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from producer.app import PredictionApp

UNREACHABLE: Final = (OperationalError, RedisError, OSError)
"""What counting or keeping fails with where the server is away."""

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
-- Take back what BEGIN_ONE counted: the request is finished.
-- KEYS: how often each was begun alone and not finished
-- ARGV: its place
return redis.call('HDEL', KEYS[1], ARGV[1])
"""

TAKE_BACK: Final = """
-- Take back what BEGIN counted last: its worker has put the message back by itself.
-- KEYS: the count
if (tonumber(redis.call('GET', KEYS[1])) or 0) > 0 then return redis.call('DECR', KEYS[1]) end
return 0
"""

FORGET: Final = """
-- Forget how often a message and the requests in it were begun.
-- KEYS: both counts
return redis.call('DEL', KEYS[1], KEYS[2])
"""


@contextmanager
def channel_of(app: PredictionApp) -> Iterator[Any]:
    """A channel to the app's broker, for the block.

    Raises:
        kombu.exceptions.OperationalError: the broker could not be reached.
    """
    with app.connection_or_acquire() as connection:
        yield connection.default_channel


def run(channel: Any, script: str, keys: Sequence[str], *arguments: Any) -> Any:
    """What a script returns, run on these keys, which get the prefix that the channel's transport may have.

    Raises:
        redis.exceptions.RedisError: as the server or the connection has it.
    """
    with channel.conn_or_acquire() as client:
        return client.eval(script, len(keys), *channel.prefixed(keys), *arguments)
