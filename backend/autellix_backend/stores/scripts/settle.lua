-- Ends a call. Returns 0 if it is not running, else the removed entry of its program if that has ended.
-- ARGV: gateway, the gateway that runs it, JSON {program, key, now, entry, most_entries, rule, services, wait_s,
-- sums, is_final, path_end_s?}
local ending = cjson.decode(ARGV[3])
local program, now = ending.program, text(ending.now)
local p, r = key('p', program), key('r', program)
local running = call('HGET', r, ending.key)
if not running then
  return 0
end
call('HDEL', r, ending.key)
call('HDEL', key('g', ARGV[2]), ending.key)
-- The history does not keep the order of its start, which comes first.
local start = string.sub(running, string.find(running, '\n', 1, true) + 1)
remember(program, start .. '\n' .. now .. '\n' .. ending.entry, ending.most_entries)
if ending.path_end_s then
  ending.path_id = cjson.decode(start).start.call_id
end
charge(program, ending.rule, ending)
call('HSET', p, 'completion', now)
if ending.is_final then
  call('HSET', p, 'ended', '1')
end
local gone = {}
if call('EXISTS', r) == 0 then
  if call('HEXISTS', p, 'ended') == 1 then
    gone[1] = drop(program)
  else
    place(program, now)
  end
end
return gone
