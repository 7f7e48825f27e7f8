"""The script in Lua that writes, in one step. `palimpsest.stores.redis.layout` says what the keys are.

A script that fails half way is not undone. So this one looks at everything first that it is going to change, which
fails where a key is of another kind, and changes nothing before. Memory that is full refuses a script before it begins,
but one whose first line says `allow-oom`.
"""

from __future__ import annotations

from palimpsest.stores.redis.scripts import ALLOW_OOM, BASE, Script

_WRITE = """
local NEVER = string.rep('\\255', 8)
local CHUNK = 500

-- what is asked, whole, and a look at each key that may change
local batches, buckets = {}, {}
for b = 1, tonumber(take()) do
  local bucket = tonumber(take())
  local one = {bucket = bucket, tenant = take(), home = take(), steps = {}}
  local root = base(bucket)
  one.heads, one.index, one.meta = root .. 'h:' .. one.tenant .. one.home, root .. 'i', root .. 'm'
  call('HLEN', one.heads)
  if not buckets[bucket] then
    call('ZCARD', one.index)
    buckets[bucket] = {last = tonumber(call('HGET', one.meta, 'last') or '0') or 0}
  end
  for s = 1, tonumber(take()) do
    local step = {space = take(), name = take(), how = take(), drop = {}, put = {}}
    step.place = step.space .. step.name
    local flags = tonumber(step.how)
    step.looks, step.moves = flags % 2 >= 1, flags % 4 >= 2
    step.expects, step.has, step.chills = flags % 8 >= 4, flags % 16 >= 8, flags % 32 >= 16
    step.destroys = flags % 64 >= 32
    if step.looks then
      step.expect = take()
      if step.moves then
        step.hot, step.cold, step.expires = take(), take(), take()
      end
    end
    local where = one.tenant .. one.home .. step.place
    step.tables, step.rows, step.ids = root .. 't:' .. where, root .. 'r:' .. where, root .. 'n:' .. where
    local drops, puts = tonumber(take()), tonumber(take())
    local known = {}
    if drops + puts > 0 then
      call('SCARD', step.tables)
    end
    for d = 1, drops do
      local name, wild, low, high = take(), take() == '*', take(), take()
      local meant = {name}
      if wild then
        meant = {}
        for _, table in ipairs(call('SMEMBERS', step.tables)) do
          if string.sub(table, 1, #name) == name then
            meant[#meant + 1] = table
          end
        end
      end
      for _, table in ipairs(meant) do
        known[table] = true
        step.drop[#step.drop + 1] = {table, low, high}
      end
    end
    for p = 1, puts do
      local put = {take(), tonumber(take())}
      put[3] = at
      at = at + put[2]
      known[put[1]] = true
      step.put[p] = put
    end
    for table in pairs(known) do
      call('ZCARD', step.rows .. table)
      call('ZCARD', step.ids .. table)
    end
    one.steps[s] = step
  end
  batches[b] = one
end
local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- rows
local function beside(one, step, table, row, what)
  local high, low = string.byte(row, 9, 10)
  if not low or high + low == 0 then
    return
  end
  local begin = 11
  if high >= 128 then
    high, begin = high - 128, 19
    local due = 'e' .. one.tenant .. string.sub(row, 11, 18) .. one.home .. step.place .. table .. string.sub(row, 1, 8)
    if what == 'ZADD' then call('ZADD', one.index, 0, due) else call('ZREM', one.index, due) end
  end
  local size = high * 256 + low
  if size > 0 then
    local found = string.sub(row, begin, begin + size - 1) .. string.sub(row, 1, 8)
    if what == 'ZADD' then call('ZADD', step.ids .. table, 0, found) else call('ZREM', step.ids .. table, found) end
  end
end

local function drop(one, step, table, low, high)
  local rows, from, to = step.rows .. table, '[' .. low, '[' .. high .. '\\255'
  while true do
    local found = call('ZRANGEBYLEX', rows, from, to, 'LIMIT', 0, CHUNK)
    for _, row in ipairs(found) do
      beside(one, step, table, row, 'ZREM')
    end
    if #found < CHUNK then
      break
    end
    from = '(' .. found[#found]
  end
  call('ZREMRANGEBYLEX', rows, '[' .. low, to)
end

local function put(one, step, table, begin, count)
  local rows = step.rows .. table
  if call('ZLEXCOUNT', rows, '[' .. string.sub(ARGV[begin + 1], 1, 8), '+') > 0 then
    for i = begin + 1, begin + count do
      local key = string.sub(ARGV[i], 1, 8)
      if call('ZLEXCOUNT', rows, '[' .. key, '[' .. key .. '\\255') > 0 then
        drop(one, step, table, key, key)
      end
    end
  end
  for first = begin + 1, begin + count, CHUNK do
    local given = {}
    for i = first, math.min(first + CHUNK - 1, begin + count) do
      given[#given + 1] = 0
      given[#given + 1] = ARGV[i]
      beside(one, step, table, ARGV[i], 'ZADD')
    end
    call('ZADD', rows, unpack(given))
  end
  call('SADD', step.tables, table)
end

-- heads
local function move(one, step, was)
  local index, names = one.index, step.name .. one.home
  local recent, due = 'r' .. one.tenant .. step.space, 'e' .. one.tenant
  local head = one.home .. step.place .. '\\0\\0' .. string.rep('\\0', 8)
  if was then
    call('ZREM', index, recent .. string.sub(was, 1, 8) .. names)
    local expired = string.sub(was, 9, 16)
    if expired ~= NEVER then
      call('ZREM', index, due .. expired .. head)
    end
  end
  local bucket = buckets[one.bucket]
  bucket.last, bucket.moved = math.max(now, bucket.last + 1), true
  if not step.has then
    if was then
      call('HDEL', one.heads, 'h' .. step.place, 'c' .. step.place)
      call('ZREM', index, 'p' .. one.tenant .. step.place .. one.home)
    end
    return
  end
  local mark = struct.pack('>I8', bucket.last)
  call('HSET', one.heads, 'h' .. step.place, mark .. step.expires .. step.hot)
  if step.chills then
    if step.cold ~= '' then
      call('HSET', one.heads, 'c' .. step.place, step.cold)
    elseif was then
      call('HDEL', one.heads, 'c' .. step.place)
    end
  end
  if was then
    call('ZADD', index, 0, recent .. mark .. names)
  else
    call('ZADD', index, 0, recent .. mark .. names, 0, 'p' .. one.tenant .. step.place .. one.home)
  end
  if step.expires ~= NEVER then
    call('ZADD', index, 0, due .. step.expires .. head)
  end
end

local function run(one)
  local stored, refused = {}, false
  for s, step in ipairs(one.steps) do
    if step.looks then
      stored[s] = call('HGET', one.heads, 'h' .. step.place)
      if step.expects then
        refused = refused or not stored[s] or string.sub(stored[s], 17) ~= step.expect
      else
        refused = refused or stored[s] ~= false
      end
    end
  end
  if refused then
    local told = {}
    for s, step in ipairs(one.steps) do
      told[2 * s - 1] = stored[s] or false
      told[2 * s] = stored[s] and call('HGET', one.heads, 'c' .. step.place) or false
    end
    return told
  end
  for s, step in ipairs(one.steps) do
    if step.moves then
      move(one, step, stored[s])
    end
    for _, gone in ipairs(step.drop) do
      drop(one, step, gone[1], gone[2], gone[3])
    end
    for _, new in ipairs(step.put) do
      put(one, step, new[1], new[3], new[2])
    end
    for _, gone in ipairs(step.drop) do
      if call('EXISTS', step.rows .. gone[1]) == 0 then
        call('SREM', step.tables, gone[1])
      end
    end
    if step.destroys then
      call('HINCRBY', one.meta, 'destroyed', 1)
    end
  end
  return false
end

local done = {}
for b, one in ipairs(batches) do
  done[b] = run(one)
end
for number, bucket in pairs(buckets) do
  if bucket.moved then
    call('HSET', base(number) .. 'm', 'last', string.format('%.0f', bucket.last))
  end
end
return done
"""

WRITE = Script("#!lua\n" + BASE + _WRITE)
DESTROY = Script(ALLOW_OOM + BASE + _WRITE)
"""The same, for what makes room: also where memory is full."""
