-- The common part, which precedes each script.
--
-- KEYS[1] is the table's hash tag, `{prefix}`. All keys begin with it, so that they lie in one slot of a
-- cluster, and a script may change several of them at once:
--   epoch                 the table's identity, which changes when the table is lost
--   gateways              sorted set: gateway -> end of its lease
--   gone                  set: gateways whose lease ended and whose calls are not settled yet
--   programs              sorted set: program -> number of its arrival
--   active, idle          sorted sets: programs with running calls -> number; without -> last event
--   sessions              sorted set: session -> last heartbeat
--   owners                hash: session -> its owner, where identity is strict
--   closing               sorted set: session that ended -> number before which its programs end with it
--   clock                 hash: Redis's time at the last look at the clock, and the table's time then
--   ends                  stream of the latest ends of programs
--   p:<program>           hash: its single values
--   r:<program>           hash: running call -> order and start
--   h:<program>           list: finished calls
--   e:<program>           hash: call -> end of its path, for policies that read parents
--   ps:<program>          sorted set: sessions that keep it
--   sp:<session>          sorted set: programs that it keeps
--   g:<gateway>           hash: running call -> program
--   a:<tenant>            hash: id in an answer -> engine and program of the answer; empty for an id of two programs
--   at:<tenant>           sorted set: id in an answer -> last use
--   u:<day>               hash: tenant -> tokens used on a day since 1970, UTC
-- Times are seconds of the table's clock, which never jumps. Numbers are stored as text with 17 digits: Lua prints 14.
local call = redis.call
local tag = KEYS[1]

local function key(kind, id)
  return tag .. ':' .. kind .. ':' .. id
end

local PROGRAMS, ACTIVE, IDLE = tag .. ':programs', tag .. ':active', tag .. ':idle'
local SESSIONS, ENDS = tag .. ':sessions', tag .. ':ends'
local OWNERS, CLOSING, CLOCK = tag .. ':owners', tag .. ':closing', tag .. ':clock'
local GATEWAYS, GONE = tag .. ':gateways', tag .. ':gone'
local KEPT_ENDS = 10000

local function text(number)
  return string.format('%.17g', number)
end

local function number(value)
  return tonumber(value or '0')
end

-- The table's time: Redis's, but it never goes back, and between two looks at it, which each gateway takes every
-- second, no more than this passes. So the table stands still while no gateway is there, and neither a leap of
-- Redis's clock nor a pause makes programs and sessions old.
local MAX_STEP_S = 2

local function table_time()
  local parts = call('TIME')
  local server = parts[1] + parts[2] / 1e6
  local known = call('HMGET', CLOCK, 'server', 'table')
  local now = server
  if known[1] then
    now = tonumber(known[2]) + math.min(math.max(server - tonumber(known[1]), 0), MAX_STEP_S)
  end
  call('HSET', CLOCK, 'server', text(server), 'table', text(now))
  return now
end

-- The rules of the policies: `add` for sums, `max` for paths.
local function merged(rule, old, value)
  if rule == 'add' then
    return old + value
  end
  return math.max(old, value)
end

local function add(p, field, value)
  call('HSET', p, field, text(number(call('HGET', p, field)) + value))
end

local function next_number()
  return call('INCR', tag .. ':numbers')
end

-- Create a program's entry if there is none.
local function ensure(program, now)
  local p = key('p', program)
  if call('HSETNX', p, 'created', now) == 1 then
    local order = next_number()
    call('HSET', p, 'order', order)
    call('ZADD', PROGRAMS, order, program)
    call('ZADD', IDLE, now, program)
  end
  return p
end

-- Move a program to the active or idle ones, depending on its running calls.
local function place(program, now)
  if call('EXISTS', key('r', program)) == 1 then
    call('ZREM', IDLE, program)
    call('ZADD', ACTIVE, call('HGET', key('p', program), 'order'), program)
  else
    call('ZREM', ACTIVE, program)
    call('ZADD', IDLE, now, program)
  end
end

local function run(program, gateway, id, start)
  local order = call('HINCRBY', key('p', program), 'begun', 1)
  call('HSET', key('r', program), id, order .. '\n' .. start)
  call('HSET', key('g', gateway), id, program)
end

local function keep(program, session)
  if not call('ZSCORE', key('ps', program), session) then
    local order = next_number()
    call('ZADD', key('ps', program), order, session)
    call('ZADD', key('sp', session), order, program)
  end
end

-- The first call with a class decides it.
local function set_class(p, source)
  if source.class_id then
    call('HSETNX', p, 'class_id', source.class_id)
  end
end

local function add_flags(p, flags, most)
  local known = cjson.decode(call('HGET', p, 'flags') or '[]')
  local has = {}
  for _, flag in ipairs(known) do
    has[flag] = true
  end
  -- The first flags that fit are considered, known ones included.
  for index = 1, math.min(#flags, most - #known) do
    if not has[flags[index]] then
      has[flags[index]] = true
      known[#known + 1] = flags[index]
    end
  end
  if #known > 0 then
    call('HSET', p, 'flags', cjson.encode(known))
  end
end

local function remember(program, entry, most)
  call('RPUSH', key('h', program), entry)
  call('LTRIM', key('h', program), -most, -1)
end

-- Charge a finished call to its program. ending: services, wait_s, sums, path_id?, path_end_s
local function charge(program, rule, ending)
  local p = key('p', program)
  local service = number(call('HGET', p, 'service_s'))
  for _, value in ipairs(ending.services) do
    service = merged(rule, service, value)
  end
  call('HSET', p, 'service_s', text(service))
  add(p, 'wait_s', ending.wait_s)
  for field, value in pairs(ending.sums) do
    add(p, field, value)
  end
  if ending.path_id then
    call('HSET', key('e', program), ending.path_id, text(ending.path_end_s))
  end
end

-- Gateways of other releases on the same table read an entry's values by position. Those of 0.2 expect the first
-- three and `first_prompt_tokens`, which nothing here reads.
local END_FIELDS = {'name', 'total_service_s', 'finished_calls', 'class_id', 'first_prompt_tokens', 'prompt_tokens',
  'cached_tokens', 'output_tokens'}

-- Remove a program; return its end's entry in the stream and the values in it. One that nothing identified has no
-- size, and so no tokens.
local function drop(program)
  local p = key('p', program)
  if call('HEXISTS', p, 'unidentified') == 1 then
    call('HDEL', p, 'prompt_tokens', 'cached_tokens', 'output_tokens')
  end
  local known = call('HMGET', p, unpack(END_FIELDS))
  for _, session in ipairs(call('ZRANGE', key('ps', program), 0, -1)) do
    call('ZREM', key('sp', session), program)
  end
  for _, kind in ipairs({'p', 'r', 'h', 'e', 'ps'}) do
    call('DEL', key(kind, program))
  end
  call('ZREM', PROGRAMS, program)
  call('ZREM', ACTIVE, program)
  call('ZREM', IDLE, program)
  local fields, values = {'program', program}, {program}
  for index, field in ipairs(END_FIELDS) do
    local value = known[index] or ''
    fields[#fields + 1], fields[#fields + 2] = field, value
    values[#values + 1] = value
  end
  local event = call('XADD', ENDS, 'MAXLEN', '~', KEPT_ENDS, '*', unpack(fields))
  return {event, unpack(values)}
end

-- End a program, at once or with its last running call; return whether it existed, and its removed entry.
local function finish(program)
  local p = key('p', program)
  if call('EXISTS', p) == 0 then
    return false, nil
  end
  if call('EXISTS', key('r', program)) == 1 then
    call('HSET', p, 'ended', '1')
    return true, nil
  end
  return true, drop(program)
end

-- End a session; return whether it was open. Its programs end by `sweep`.
local function shut(session)
  local was_open = call('ZREM', SESSIONS, session) == 1
  if was_open or not call('ZSCORE', CLOSING, session) then
    call('HDEL', OWNERS, session)
    -- A session of the same id may start before the last of these programs has ended.
    call('ZADD', CLOSING, next_number(), session)
  end
  return was_open
end

-- End at most `most` programs of a session that has ended; append the ended ones to `ended`, the removed entries to
-- `gone`. Return how many programs were looked at; with `most`, there may be more.
local function sweep(session, ended, gone, most)
  local before = call('ZSCORE', CLOSING, session) or 0
  local programs = call('ZRANGEBYSCORE', key('sp', session), '-inf', before, 'LIMIT', 0, most)
  for _, program in ipairs(programs) do
    call('ZREM', key('sp', session), program)
    call('ZREM', key('ps', program), session)
    if call('EXISTS', key('ps', program)) == 0 then
      local was_there, entry = finish(program)
      if was_there then
        ended[#ended + 1] = program
      end
      gone[#gone + 1] = entry
    end
  end
  if #programs < most then
    call('ZREM', CLOSING, session)
  end
  return #programs
end
