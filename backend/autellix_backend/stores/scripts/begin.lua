-- Starts a call. Returns 0 if its key is running already, 1 if its program has another owner, else the values that
-- it inherits from its program.
-- ARGV: gateway, JSON {program, key, now, start, session?, name?, group?, owner?, class_id?, flags, most_flags,
-- intercepted_s, interceptions?, hint?, parents?}
local start = cjson.decode(ARGV[2])
local program, now = start.program, text(start.now)
if call('HEXISTS', key('r', program), start.key) == 1 then
  return 0
end
if start.owner then
  local owner = call('HGET', key('p', program), 'owner')
  if owner and owner ~= start.owner then
    return 1
  end
end
local p = ensure(program, now)
if start.owner then
  call('HSET', p, 'owner', start.owner)
end
run(program, ARGV[1], start.key, start.start)
call('HSET', p, 'arrival', now)
call('HDEL', p, 'ended')
place(program, now)
if start.name then
  call('HSETNX', p, 'name', start.name)
end
if start.group then
  call('HSETNX', p, 'group', start.group)
end
set_class(p, start)
if #start.flags > 0 then
  add_flags(p, start.flags, start.most_flags)
end
if start.interceptions then
  add(p, 'intercepted_s', start.intercepted_s)
  call('HSET', p, 'last_interceptions', start.interceptions)
end
if start.session then
  keep(program, start.session)
end
if start.hint then
  local done = call('HMGET', p, 'finished_calls', 'output_tokens')
  call('HSET', p, 'hint', start.hint, 'hint_calls', done[1] or '0', 'hint_tokens', done[2] or '0')
end
local ends = {}
for _, parent in ipairs(start.parents or {}) do
  ends[#ends + 1] = call('HGET', key('e', program), parent) or ''
end
local known = call('HMGET', p, 'service_s', 'wait_s', 'name', 'total_service_s', 'finished_calls', 'output_tokens',
  'hint', 'hint_calls', 'hint_tokens', 'prompt_tokens', 'cached_tokens', 'created', 'class_id')
return {known, ends}
