"""The script in Lua that writes, in one step. `palimpsest.stores.redis.layout` describes the keys.

The server does not undo a script that fails half way. So this one first checks that the user may run each command,
decodes all its arguments, and reads each key that it may change, which fails if a key is of another type. Only then it
changes something. A server whose memory is full refuses a script before it begins, unless its first line says
`allow-oom`.
"""

from __future__ import annotations

from palimpsest.stores.redis.scripts import ALLOW_OOM, BASE, Script

_WRITE = """
local NEVER = string.rep('\\255', 8)
local CHUNK = 500

-- check that the user may run each command that is called below; the numbers say how many arguments follow a key
local COMMANDS = {
  EXISTS = 0, HDEL = 1, HGET = 1, HINCRBY = 2, HLEN = 0, HSET = 2, SADD = 1, SCARD = 0, SMEMBERS = 0, SREM = 1,
  TIME = 0, ZADD = 2, ZCARD = 0, ZLEXCOUNT = 2, ZRANGEBYLEX = 2, ZREM = 1, ZREMRANGEBYLEX = 2
}
local may = redis.acl_check_cmd or function() return true end  -- not every program that speaks the protocol has it
for command, more in pairs(COMMANDS) do
  if not may(command, KEYS[1], unpack({'0', '0'}, 1, more)) then
    return redis.error_reply('NOPERM the user may not run ' .. command)
  end
end

-- decode all arguments, and read each key that may change: that fails if a key is of another type
local batches, buckets = {}, {}
for b = 1, tonumber(take()) do
  local bucket = tonumber(take())
  local batch = {bucket = bucket, tenant = take(), home = take(), steps = {}}
  local root = base(bucket)
  batch.heads, batch.index, batch.meta = root .. 'h:' .. batch.tenant .. batch.home, root .. 'i', root .. 'm'
  call('HLEN', batch.heads)
  if not buckets[bucket] then
    call('ZCARD', batch.index)
    buckets[bucket] = {last = tonumber(call('HGET', batch.meta, 'last') or '0') or 0}
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
    local names = batch.tenant .. batch.home .. step.place
    step.tables, step.rows, step.ids = root .. 't:' .. names, root .. 'r:' .. names, root .. 'n:' .. names
    local drops, puts = tonumber(take()), tonumber(take())
    local touched = {}
    if drops + puts > 0 then
      call('SCARD', step.tables)
    end
    for d = 1, drops do
      local name, wild, low, high = take(), take() == '*', take(), take()
      local tables = {name}
      if wild then
        tables = {}
        for _, table in ipairs(call('SMEMBERS', step.tables)) do
          if string.sub(table, 1, #name) == name then
            tables[#tables + 1] = table
          end
        end
      end
      for _, table in ipairs(tables) do
        touched[table] = true
        step.drop[#step.drop + 1] = {table, low, high}
      end
    end
    for p = 1, puts do
      local put = {take(), tonumber(take())}
      put[3] = at
      at = at + put[2]
      touched[put[1]] = true
      step.put[p] = put
    end
    for table in pairs(touched) do
      call('ZCARD', step.rows .. table)
      call('ZCARD', step.ids .. table)
    end
    batch.steps[s] = step
  end
  batches[b] = batch
end
local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- rows

-- add (ZADD) or remove (ZREM) what the index has of a row that expires, and the entry of its id
local function index_row(batch, step, table, row, command)
  local high, low = string.byte(row, 9, 10)
  if not low or high + low == 0 then
    return
  end
  local begin = 11
  if high >= 128 then
    high, begin = high - 128, 19
    local where = batch.home .. step.place .. table .. string.sub(row, 1, 8)
    local due = 'e' .. batch.tenant .. string.sub(row, 11, 18) .. where
    if command == 'ZADD' then call('ZADD', batch.index, 0, due) else call('ZREM', batch.index, due) end
  end
  local size = high * 256 + low
  if size > 0 then
    local entry = string.sub(row, begin, begin + size - 1) .. string.sub(row, 1, 8)
    if command == 'ZADD' then call('ZADD', step.ids .. table, 0, entry) else call('ZREM', step.ids .. table, entry) end
  end
end

local function drop(batch, step, table, low, high)
  local rows, from, to = step.rows .. table, '[' .. low, '[' .. high .. '\\255'
  while true do
    local found = call('ZRANGEBYLEX', rows, from, to, 'LIMIT', 0, CHUNK)
    for _, row in ipairs(found) do
      index_row(batch, step, table, row, 'ZREM')
    end
    if #found < CHUNK then
      break
    end
    from = '(' .. found[#found]
  end
  call('ZREMRANGEBYLEX', rows, '[' .. low, to)
end

-- put `count` rows, which are the arguments behind `begin`, in order of their keys
local function put(batch, step, table, begin, count)
  local rows = step.rows .. table
  if call('ZLEXCOUNT', rows, '[' .. string.sub(ARGV[begin + 1], 1, 8), '+') > 0 then
    for i = begin + 1, begin + count do
      local key = string.sub(ARGV[i], 1, 8)
      if call('ZLEXCOUNT', rows, '[' .. key, '[' .. key .. '\\255') > 0 then
        drop(batch, step, table, key, key)
      end
    end
  end
  for first = begin + 1, begin + count, CHUNK do
    local given = {}
    for i = first, math.min(first + CHUNK - 1, begin + count) do
      given[#given + 1] = 0
      given[#given + 1] = ARGV[i]
      index_row(batch, step, table, ARGV[i], 'ZADD')
    end
    call('ZADD', rows, unpack(given))
  end
  call('SADD', step.tables, table)
end

-- heads

-- change a head, of which `previous` is the stored value, and what the index has of it
local function move(batch, step, previous)
  local index, names = batch.index, step.name .. batch.home
  local recent, due = 'r' .. batch.tenant .. step.space, 'e' .. batch.tenant
  local head = batch.home .. step.place .. '\\0\\0' .. string.rep('\\0', 8)
  if previous then
    call('ZREM', index, recent .. string.sub(previous, 1, 8) .. names)
    local expired = string.sub(previous, 9, 16)
    if expired ~= NEVER then
      call('ZREM', index, due .. expired .. head)
    end
  end
  local bucket = buckets[batch.bucket]
  bucket.last, bucket.moved = math.max(now, bucket.last + 1), true
  if not step.has then
    if previous then
      call('HDEL', batch.heads, 'h' .. step.place, 'c' .. step.place)
      call('ZREM', index, 'p' .. batch.tenant .. step.place .. batch.home)
    end
    return
  end
  local mark = struct.pack('>I8', bucket.last)
  call('HSET', batch.heads, 'h' .. step.place, mark .. step.expires .. step.hot)
  if step.chills then
    if step.cold ~= '' then
      call('HSET', batch.heads, 'c' .. step.place, step.cold)
    elseif previous then
      call('HDEL', batch.heads, 'c' .. step.place)
    end
  end
  if previous then
    call('ZADD', index, 0, recent .. mark .. names)
  else
    call('ZADD', index, 0, recent .. mark .. names, 0, 'p' .. batch.tenant .. step.place .. batch.home)
  end
  if step.expires ~= NEVER then
    call('ZADD', index, 0, due .. step.expires .. head)
  end
end

-- write a batch, or return the heads that are there if one is not as expected
local function run(batch)
  local stored, refused = {}, false
  for s, step in ipairs(batch.steps) do
    if step.looks then
      stored[s] = call('HGET', batch.heads, 'h' .. step.place)
      if step.expects then
        refused = refused or not stored[s] or string.sub(stored[s], 17) ~= step.expect
      else
        refused = refused or stored[s] ~= false
      end
    end
  end
  if refused then
    local present = {}
    for s, step in ipairs(batch.steps) do
      present[2 * s - 1] = stored[s] or false
      present[2 * s] = stored[s] and call('HGET', batch.heads, 'c' .. step.place) or false
    end
    return present
  end
  for s, step in ipairs(batch.steps) do
    if step.moves then
      move(batch, step, stored[s])
    end
    for _, span in ipairs(step.drop) do
      drop(batch, step, span[1], span[2], span[3])
    end
    for _, rows in ipairs(step.put) do
      put(batch, step, rows[1], rows[3], rows[2])
    end
    for _, span in ipairs(step.drop) do
      if call('EXISTS', step.rows .. span[1]) == 0 then
        call('SREM', step.tables, span[1])
      end
    end
    if step.destroys then
      call('HINCRBY', batch.meta, 'destroyed', 1)
    end
  end
  return false
end

local done = {}
for b, batch in ipairs(batches) do
  done[b] = run(batch)
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
"""Like WRITE, but it also runs when memory is full: for batches that destroy, and so make room."""
