"""The scripts in Lua that the server runs, each as one step; the one that writes is in `writing` beside this.

`palimpsest.stores.redis.layout` describes the keys. A script is given the index keys of buckets (`…:i`), from which
`base` derives the bucket's other keys. `take` returns the next argument.
"""

from __future__ import annotations

from hashlib import sha1

NO_WRITES, ALLOW_OOM = "#!lua flags=no-writes\n", "#!lua flags=allow-oom\n"


class Script:
    """A script, and its `name` (a SHA-1 digest), by which a server that has run it before can be asked to run it."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.name = sha1(self.text, usedforsecurity=False).hexdigest()


BASE = """
local call = redis.call
local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end
local function base(number)
  return string.sub(KEYS[number], 1, -2)
end
"""

_LOOK = """
local parts, ends = {}, 0
local function put(value)
  parts[ends + 1] = struct.pack('>i4', value and #value or -1)
  parts[ends + 2] = value or ''
  ends = ends + 2
end

local function span(rows, low, high, limit, newest)
  local from, to = '[' .. low, '[' .. high .. '\\255'
  if newest then
    return call('ZREVRANGEBYLEX', rows, to, from, 'LIMIT', 0, limit)
  end
  return call('ZRANGEBYLEX', rows, from, to, 'LIMIT', 0, limit)
end

for _ = 1, tonumber(take()) do
  local root, home, place, head = base(tonumber(take())), take(), take(), take() == '1'
  if head then
    local found = call('HMGET', root .. 'h:' .. home, 'h' .. place, 'c' .. place)
    put(found[1])
    put(found[2])
  end
  for r = 1, tonumber(take()) do
    local kind, name = take(), take()
    local rows = root .. 'r:' .. home .. place .. name
    local found = {}
    if kind == 'n' then
      local ids = root .. 'n:' .. home .. place .. name
      for i = 1, tonumber(take()) do
        local id = take()
        for _, entry in ipairs(call('ZRANGEBYLEX', ids, '[' .. id, '[' .. id .. '\\255')) do
          local key = string.sub(entry, -8)
          found[#found + 1] = span(rows, key, key, -1, false)[1]
        end
      end
    else
      local limit, newest = tonumber(take()), kind == 'd'
      for s = 1, tonumber(take()) do
        local low, high = take(), take()
        if limit ~= 0 then
          local in_span = span(rows, low, high, limit, newest)
          if #found == 0 then
            found = in_span
          else
            for _, row in ipairs(in_span) do
              found[#found + 1] = row
            end
          end
          if limit > 0 then
            limit = limit - #in_span
          end
        end
      end
    end
    ends = ends + 1
    parts[ends] = struct.pack('>I4', #found)
    for _, row in ipairs(found) do
      put(row)
    end
  end
end
return table.concat(parts)
"""

_LIST = """
local low, high, limit, newest, floor = take(), take(), tonumber(take()), take() == '1', take()

local function home_in(member)
  local begin = 2
  local mark = string.sub(member, 1, 1) == 'r'
  local ends = {}
  for part = 1, 4 do
    local first, last = string.find(member, '\\0\\0', begin, true)
    if not first then
      return nil
    end
    ends[part] = {begin, last}
    begin = last + 1
    if mark and part == 2 then
      begin = begin + 8
    end
  end
  local function part(number)
    return string.sub(member, ends[number][1], ends[number][2])
  end
  return part(1) .. part(4), part(2) .. part(3)
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local answers = {}
for number = 1, #KEYS do
  local root = base(number)
  local last = tonumber(call('HGET', root .. 'm', 'last') or '0') or 0
  if floor ~= '' and last < tonumber(floor) then
    call('HSET', root .. 'm', 'last', floor)
    last = tonumber(floor)
  end
  local found
  if newest then
    found = call('ZREVRANGEBYLEX', root .. 'i', high, low, 'LIMIT', 0, limit)
  else
    found = call('ZRANGEBYLEX', root .. 'i', low, high, 'LIMIT', 0, limit)
  end
  local answer = {string.format('%.0f', last), string.format('%.0f', math.max(now, last))}
  for _, member in ipairs(found) do
    local home, place = home_in(member)
    local head = {false, false}
    if home then
      head = call('HMGET', root .. 'h:' .. home, 'h' .. place, 'c' .. place)
    end
    answer[#answer + 1] = member
    answer[#answer + 1] = head[1]
    answer[#answer + 1] = head[2]
  end
  answers[number] = answer
end
return answers
"""

_DUE = """
local low, high, limit = take(), take(), tonumber(take())
local answers = {}
for number = 1, #KEYS do
  answers[number] = call('ZRANGEBYLEX', KEYS[number], low, high, 'LIMIT', 0, limit)
end
return answers
"""

_TENANTS = """
local low, limit = take(), tonumber(take())
local answers = {}
for number = 1, #KEYS do
  local answer, from = {}, low
  while #answer < limit do
    local found = call('ZRANGEBYLEX', KEYS[number], from, '(q', 'LIMIT', 0, 1)[1]
    if not found then
      break
    end
    local first, last = string.find(found, '\\0\\0', 2, true)
    if not first then
      from = '(' .. found
    else
      answer[#answer + 1] = string.sub(found, 2, first - 1)
      from = '(' .. string.sub(found, 1, last) .. '\\255'
    end
  end
  answers[number] = answer
end
return answers
"""

_DESTROYED = """
local answers = {}
for number = 1, #KEYS do
  answers[number] = call('HGET', base(number) .. 'm', 'destroyed') or ''
end
return answers
"""

_SCRUBBED = """
for number = 1, #KEYS do
  local meta, seen = base(number) .. 'm', take()
  if call('HGET', meta, 'destroyed') == seen then
    call('HDEL', meta, 'destroyed')
  end
end
return KEYS
"""

LOOK = Script(NO_WRITES + BASE + _LOOK)
LIST = Script(NO_WRITES + BASE + _LIST)
RAISE = Script(ALLOW_OOM + BASE + _LIST)
"""Like LIST, but first raises the buckets' last marks to `floor`, so that later writes get higher marks."""
DUE = Script(NO_WRITES + BASE + _DUE)
TENANTS = Script(NO_WRITES + BASE + _TENANTS)
DESTROYED = Script(NO_WRITES + BASE + _DESTROYED)
SCRUBBED = Script(ALLOW_OOM + BASE + _SCRUBBED)
