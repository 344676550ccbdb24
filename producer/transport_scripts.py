"""The two scripts that the queue's wire runs on the server.

They need Redis 7 or Valkey: a script that may run when memory is full is what lets a worker empty a full broker.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the SHA-1 by which a server that has seen it runs it again."""

    text: str
    sha: str


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


TAKE: Final = _script("""#!lua flags=allow-oom
-- Acknowledge, then take messages in the order of the lists given, recording each before it leaves its list.
-- KEYS: unacked hash, its index by time, list for malformed messages, the lists, the queues' bells
-- ARGV: number of lists, messages at most, bytes at most, tags to acknowledge
-- Returns: malformed messages set aside, whether the lists are empty now,
--          then place of the list (from 0) and raw message, for each message taken
local unacked, index, aside = KEYS[1], KEYS[2], KEYS[3]
local lists, most, bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

for first = 4, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  redis.call('ZREM', index, unpack(ARGV, first, last))
  redis.call('HDEL', unacked, unpack(ARGV, first, last))
end

local out, taken, malformed, drained = {0, 0}, 0, 0, 1
for place = 1, lists do
  local list = KEYS[3 + place]
  while true do
    if taken >= most or bytes <= 0 then
      drained = 0
      break
    end
    local raw = redis.call('LINDEX', list, -1)
    if not raw then break end
    local ok, message = pcall(cjson.decode, raw)
    local properties = ok and type(message) == 'table' and message.properties
    local tag = type(properties) == 'table' and properties.delivery_tag
    if type(tag) == 'string' and tag ~= '' then
      local info = type(properties.delivery_info) == 'table' and properties.delivery_info or {}
      local exchange = type(info.exchange) == 'string' and info.exchange or ''
      local key = type(info.routing_key) == 'string' and info.routing_key or ''
      redis.call('ZADD', index, now, tag)
      redis.call('HSET', unacked, tag, '[' .. raw .. ',' .. cjson.encode(exchange) .. ',' .. cjson.encode(key) .. ']')
      out[#out + 1] = place - 1
      out[#out + 1] = raw
      taken = taken + 1
      bytes = bytes - #raw
    else
      redis.call('LPUSH', aside, raw)
      redis.call('LTRIM', aside, 0, 999)
      malformed = malformed + 1
    end
    redis.call('RPOP', list)
  end
  if drained == 0 then break end
end

if drained == 1 and #KEYS > 3 + lists then
  -- Whoever rang meant messages that are taken by now; a later message rings after it is on its list.
  redis.call('DEL', unpack(KEYS, 4 + lists, #KEYS))
end
out[1] = malformed
out[2] = drained
return out
""")

RESTORE: Final = """#!lua flags=allow-oom
-- Put an unacknowledged message back, if its record is still there: of two that try, one does.
-- KEYS: unacked hash, unacked index, the lists, their queues' bells
-- ARGV: tag, message, LPUSH or RPUSH, number of lists, rings kept
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
local lists = tonumber(ARGV[4])
for place = 3, 2 + lists do
  redis.call(ARGV[3], KEYS[place], ARGV[2])
  redis.call('LPUSH', KEYS[place + lists], 1)
  redis.call('LTRIM', KEYS[place + lists], 0, tonumber(ARGV[5]) - 1)
end
return 1
"""
