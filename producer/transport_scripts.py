"""The scripts that the queue's wire runs on the server, and what each promises.

They need Redis 7 or Valkey: a script that may run when memory is full is what lets workers empty a full broker.
"""

from __future__ import annotations

import hashlib
from typing import Final

TAKE: Final = """#!lua flags=allow-oom
-- Acknowledge, then take messages in the order of the lists given, recording each before it leaves its list.
-- KEYS: unacked hash, its index by time, list of messages set aside, the lists (queue by queue within each
--       priority), the queues' bells
-- ARGV: number of queues, messages at most, bytes at most, the queues' names, tags to acknowledge
-- Returns: messages set aside, whether the lists are empty now, what was wrong with a list (or nothing),
--          then place of the list (from 0), tag and raw message, for each message taken
local unacked, index, aside = KEYS[1], KEYS[2], KEYS[3]
local queues, most, bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lists = #KEYS - 3 - queues

for first = 4 + queues, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  redis.call('ZREM', index, unpack(ARGV, first, last))
  redis.call('HDEL', unacked, unpack(ARGV, first, last))
end

local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local out, taken, malformed, drained, refused = {0, 0, ''}, 0, 0, true, ''

local function tag_of(raw)
  local ok, message = pcall(cjson.decode, raw)
  local properties = ok and type(message) == 'table' and message.properties
  local tag = type(properties) == 'table' and properties.delivery_tag
  return type(tag) == 'string' and tag ~= '' and tag
end

local left = 0  -- lists that exist: most of those of many queues and priorities do not
for first = 4, 3 + lists, 1000 do
  left = left + redis.call('EXISTS', unpack(KEYS, first, math.min(first + 999, 3 + lists)))
end
for place = 0, lists - 1 do
  if left == 0 then break end
  local list, queue = KEYS[4 + place], ARGV[4 + place % queues]
  -- A record names where its message goes back to: the default exchange, and the queue that it came from.
  local home = ',"",' .. cjson.encode(queue) .. ']'
  local there = false
  while true do
    if taken >= most or bytes <= 0 then
      drained = false
      break
    end
    local raw = redis.pcall('LINDEX', list, -1)
    if not raw then break end
    there = true
    local wrong = type(raw) == 'table' and raw.err
    local tag = not wrong and tag_of(raw)
    if tag then
      redis.call('ZADD', index, now + taken / 1000000, tag)  -- so that they come back in the order of the list
      redis.call('HSET', unacked, tag, '[' .. raw .. home)
      out[#out + 1] = place
      out[#out + 1] = tag
      out[#out + 1] = raw
      taken = taken + 1
      bytes = bytes - #raw
    elseif not wrong then
      local kept = redis.pcall('LPUSH', aside, raw)
      wrong = type(kept) == 'table' and kept.err
      if not wrong then
        redis.call('LTRIM', aside, 0, 999)
        malformed = malformed + 1
      end
    end
    if wrong then
      refused = queue .. ': ' .. wrong  -- this list waits for its operator, the others do not
      break
    end
    redis.call('LTRIM', list, 0, -2)
  end
  if not drained then break end
  if there then left = left - 1 end
end

if drained then
  -- Whoever rang meant messages that are taken by now; a later message rings after it is on its list.
  for first = 4 + lists, #KEYS, 1000 do
    redis.call('DEL', unpack(KEYS, first, math.min(first + 999, #KEYS)))
  end
end
out[1], out[2], out[3] = malformed, drained and 1 or 0, refused
return out
"""

TAKE_SHA: Final = hashlib.sha1(TAKE.encode(), usedforsecurity=False).hexdigest()
"""By which a server that has seen the script runs it again."""

RESTORE: Final = """#!lua flags=allow-oom
-- Put an unacknowledged message back on its lists, if its record is still there: of two that try, one does.
-- KEYS: unacked hash, its index by time, the lists, their queues' bells
-- ARGV: tag, message, LPUSH or RPUSH, rings kept, milliseconds a bell is kept,
--       time after which the record must not have been made (or nothing)
local made = redis.call('ZSCORE', KEYS[2], ARGV[1])
if made and ARGV[6] ~= '' and tonumber(made) > tonumber(ARGV[6]) then return 0 end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 0
end
local lists = (#KEYS - 2) / 2
for place = 3, 2 + lists do redis.call(ARGV[3], KEYS[place], ARGV[2]) end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
for place = 3 + lists, #KEYS do
  redis.pcall('LPUSH', KEYS[place], 1)
  redis.pcall('LTRIM', KEYS[place], 0, ARGV[4] - 1)
  redis.pcall('PEXPIRE', KEYS[place], ARGV[5])
end
return 1
"""

SET_ASIDE: Final = """#!lua flags=allow-oom
-- Move a recorded message that nobody can read to the list of messages set aside.
-- KEYS: unacked hash, its index by time, list of messages set aside
-- ARGV: tag, message
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  redis.call('LPUSH', KEYS[3], ARGV[2])
  redis.call('LTRIM', KEYS[3], 0, 999)
  redis.call('HDEL', KEYS[1], ARGV[1])
end
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""

RENEW: Final = """#!lua flags=allow-oom
-- Let records that are still there count from now.
-- KEYS: their index by time
-- ARGV: tags
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
for _, tag in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 'XX', now, tag) end
return 1
"""

ORPHAN: Final = """#!lua flags=allow-oom
-- Forget a tag that has no record.
-- KEYS: unacked hash, its index by time
-- ARGV: tag
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then redis.call('ZREM', KEYS[2], ARGV[1]) end
return 0
"""
