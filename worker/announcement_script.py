"""The script of a worker's heartbeat: it tells what this worker holds, makes its claims, and says what others do.

One command a worker and second. What the queues look like is kept for a moment, so that a thousand workers do not all
look at the same messages. It needs Redis 7 or Valkey, as the queue's wire does.
"""

from __future__ import annotations

import hashlib
from typing import Final

EXCHANGE: Final = """#!lua flags=allow-oom
-- KEYS: workers by the time until which they count, this worker's entry, then for each checkpoint: holders, loaders
--       and those that failed by the time until which they count, its claim, what is known of its queue, its lists
-- ARGV: one JSON object, see `worker.announcements.exchange`
-- Returns: time, live workers, then for each checkpoint: messages, age of the oldest, holders and loaders but for this
--          worker, answers a second, claim (0 nobody's, 1 this worker's, 2 another's), workers that failed, seconds
--          since it was answered for, or somebody new came to hold or load it
local asked = cjson.decode(ARGV[1])
local me, life, lists = asked.worker, asked.life, asked.lists
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local FRESH, KEPT_MS, BUCKET = 0.4, 60000, 5  -- seconds, milliseconds, seconds

local function stay(key, score)  -- this worker in a sorted set; those whose time is over go. Whether it is new there
  local new = redis.call('ZADD', key, score, me)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('PEXPIRE', key, math.ceil(math.max(life, score - now) * 1000))
  return new == 1
end

local function others(key, mine)
  local count = redis.call('ZCOUNT', key, now, '+inf')
  if count > 0 and mine and redis.call('ZSCORE', key, me) then count = count - 1 end
  return count
end

-- The oldest message is the last of a list. A message of ours ends with the time when it was sent; a clock that is
-- wrong counts for no more than the time for which the queue has not been empty, and no less than the time for which
-- the same messages have stood at the ends.
local function look(at, known)
  local depth, sent, ends, nameless = 0, nil, '', false
  for place = at + 5, at + 4 + lists do
    local length = redis.pcall('LLEN', KEYS[place])
    if type(length) == 'number' and length > 0 then
      depth = depth + length
      local raw = redis.call('LINDEX', KEYS[place], -1)
      local ending = raw:sub(-120)
      ends = ends .. redis.sha1hex(ending)
      local stamp = tonumber(ending:match('"laya_sent": ?([%d%.]+)'))
      if stamp and (not sent or stamp < sent) then sent = stamp end
    end
  end
  if depth == 0 then
    if known.depth then redis.call('HDEL', KEYS[at + 4], 'at', 'depth', 'age', 'since', 'ends', 'still') end
    return 0, 0
  end
  local since = known.since or now
  local still = known.ends == ends and known.still or now
  local age = math.max(now - still, sent and math.min(now - sent, now - since) or 0)
  redis.call('HSET', KEYS[at + 4], 'at', now, 'depth', depth, 'age', age, 'since', since, 'ends', ends, 'still', still)
  redis.call('PEXPIRE', KEYS[at + 4], KEPT_MS)
  return depth, age
end

local function rate_of(at, known, done)
  local bucket = math.floor(now / BUCKET)
  local current, before = 0, 0
  if known.bucket == bucket then
    current, before = known.current, known.before
  elseif known.bucket == bucket - 1 then
    before = known.current
  end
  if done > 0 then
    current = current + done
    redis.call('HSET', KEYS[at + 4], 'bucket', bucket, 'current', current, 'before', before)
    redis.call('PEXPIRE', KEYS[at + 4], KEPT_MS)
  end
  return (current + before) / (BUCKET + now - bucket * BUCKET)
end

if asked.leave then
  redis.call('ZREM', KEYS[1], me)
  redis.call('DEL', KEYS[2])
elseif me ~= '' then
  stay(KEYS[1], now + life)
  redis.call('SET', KEYS[2], asked.entry, 'PX', life * 1000)
end

local out = {string.format('%.6f', now), redis.call('ZCOUNT', KEYS[1], now, '+inf')}
local width = 5 + lists
for number, told in ipairs(asked.told) do
  local at = 3 + (number - 1) * width
  local holds, loads, done, claim, failed = unpack(told)
  local lively = done > 0
  if holds > 0 and stay(KEYS[at], now + life) then lively = true end
  if holds < 0 then redis.call('ZREM', KEYS[at], me) end
  if loads > 0 and stay(KEYS[at + 1], now + life) then lively = true end
  if loads < 0 then redis.call('ZREM', KEYS[at + 1], me) end
  if failed > 0 then stay(KEYS[at + 2], now + failed) elseif failed < 0 then redis.call('ZREM', KEYS[at + 2], me) end

  local owner = redis.call('GET', KEYS[at + 3])
  if claim == 'keep' and (not owner or owner == me) then
    redis.call('SET', KEYS[at + 3], me, 'PX', asked.claim * 1000)
    owner = me
  elseif owner == me and claim == 'drop' then
    redis.call('DEL', KEYS[at + 3])
    owner = false
  end

  local fields = redis.call('HMGET', KEYS[at + 4], 'at', 'depth', 'age', 'since', 'still', 'bucket', 'current',
    'before', 'lively', 'ends')
  local known = {ends = fields[10]}
  for place, name in ipairs({'at', 'depth', 'age', 'since', 'still', 'bucket', 'current', 'before', 'lively'}) do
    known[name] = tonumber(fields[place] or nil)
  end
  if lively then
    known.lively = now
    redis.call('HSET', KEYS[at + 4], 'lively', now)
    redis.call('PEXPIRE', KEYS[at + 4], KEPT_MS)
  end
  local depth, age
  if known.at and now - known.at < FRESH then
    depth, age = known.depth, known.age
  else
    depth, age = look(at, known)
  end
  out[#out + 1] = depth
  out[#out + 1] = string.format('%.3f', age)
  out[#out + 1] = others(KEYS[at], holds > 0)
  out[#out + 1] = others(KEYS[at + 1], loads > 0)
  out[#out + 1] = string.format('%.3f', rate_of(at, known, done))
  out[#out + 1] = owner == me and 1 or owner and 2 or 0
  out[#out + 1] = redis.call('ZCOUNT', KEYS[at + 2], now, '+inf')
  out[#out + 1] = string.format('%.3f', now - math.max(known.lively or 0, known.since or now))
end
return out
"""

EXCHANGE_SHA: Final = hashlib.sha1(EXCHANGE.encode(), usedforsecurity=False).hexdigest()
"""By which a server that has seen the script runs it again."""
