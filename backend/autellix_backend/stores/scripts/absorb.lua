-- Merges the delta of a program from a gateway that could not reach the table.
-- Returns 0 if the program ended meanwhile and stays ended, else a list with its removed entry if it ends here.
-- ARGV: gateway, JSON {program, version, writer, is_known, base?, rule, services, wait_s, sums, path_ends_s,
-- name?, owner?, class_id?, flags, most_flags,
-- sessions, entries, most_entries, running, settled, is_ended, created, event}
local gateway, delta = ARGV[1], cjson.decode(ARGV[2])
local program = delta.program
local p, r = key('p', program), key('r', program)
local is_gone = false
local has_ended = delta.is_known and not delta.base or ended_since(ENDED, program, delta.created)
if call('EXISTS', p) == 0 and has_ended then
  if next(delta.running) == nil then
    return 0
  end
  -- It ends with its calls, which are still running.
  is_gone = true
end
ensure(program, text(delta.created))
local seen = 'seen:' .. delta.writer
-- A gateway repeats a delta whose answer was lost.
local is_repeated = number(call('HGET', p, seen)) >= delta.version
if not is_repeated then
  call('HSET', p, seen, delta.version)
  if delta.base then
    -- The table was lost. Each gateway's copy of a sum was right at some time before: the greatest is the
    -- latest. Later changes add up, so add the difference to the last base.
    for field, value in pairs(delta.base) do
      local old = number(call('HGET', p, 'base:' .. field))
      if value > old then
        call('HSET', p, 'base:' .. field, text(value))
        local rule = field == 'service_s' and delta.rule or 'add'
        local more = rule == 'add' and value - old or value
        call('HSET', p, field, text(merged(rule, number(call('HGET', p, field)), more)))
      end
    end
  end
  charge(program, delta.rule, delta)
  for id, end_s in pairs(delta.path_ends_s) do
    call('HSET', key('e', program), id, text(end_s))
  end
  for _, entry in ipairs(delta.entries) do
    remember(program, entry, delta.most_entries)
  end
  for _, ending in ipairs(delta.settled) do
    -- Begun while the gateway could reach the table. If it is neither running nor lost, its end arrived,
    -- unless the table was lost.
    local was_lost = call('HDEL', key('l', program), ending.key) == 1
    local was_running = call('HDEL', r, ending.key) == 1
    call('HDEL', key('g', gateway), ending.key)
    if was_lost or was_running or delta.base then
      if was_lost then
        ending.sums.finished_calls = nil
      end
      charge(program, delta.rule, ending)
      remember(program, ending.entry, delta.most_entries)
    end
  end
end
if delta.name then
  call('HSETNX', p, 'name', delta.name)
end
if delta.owner then
  call('HSETNX', p, 'owner', delta.owner)
end
set_class(p, delta)
add_flags(p, delta.flags, delta.most_flags)
local is_forsaken = false
for _, session in ipairs(delta.sessions) do
  if ended_since(CLOSED, session, delta.created) and not call('ZSCORE', SESSIONS, session) then
    is_forsaken = true
  else
    keep(program, session)
  end
end
is_forsaken = is_forsaken and call('EXISTS', key('ps', program)) == 0
-- Remove the gateway's running calls that the delta does not list.
for _, id in ipairs(call('HKEYS', r)) do
  if not delta.running[id] and call('HDEL', key('g', gateway), id) == 1 then
    call('HDEL', r, id)
  end
end
for id, start in pairs(delta.running) do
  if call('HEXISTS', r, id) == 0 then
    call('HDEL', key('l', program), id)
    run(program, gateway, id, start)
  end
end
local event = math.max(number(call('HGET', p, 'arrival')), number(call('HGET', p, 'completion')), delta.event)
call('HSET', p, 'completion', text(event))
if is_gone or is_forsaken or delta.is_ended or call('HEXISTS', p, 'ended') == 1 then
  local _, entry = finish(program)
  if entry then
    return {entry}
  end
end
place(program, text(event))
return {}
