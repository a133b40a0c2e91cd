-- Remembers the engine and program of an answer by the ids in it, and drops a tenant's oldest ones.
-- ARGV: gateway, JSON {tenant, ids, program, engine, now, oldest, most, keep_s}
local given = cjson.decode(ARGV[2])
local sources, times = key('a', given.tenant), key('at', given.tenant)
for _, id in ipairs(given.ids) do
  local used, known = call('ZSCORE', times, id), nil
  if used and tonumber(used) > given.oldest then
    known = call('HGET', sources, id)
  end
  local is_shared = known and string.sub(known, string.find(known .. '\n', '\n', 1, true) + 1) ~= given.program
  call('HSET', sources, id, is_shared and '' or given.engine .. '\n' .. given.program)
  call('ZADD', times, text(given.now), id)
end
-- As many as were added, so that one script never drops a crowd.
local dropped = call('ZRANGEBYSCORE', times, '-inf', text(given.oldest), 'LIMIT', 0, 2 * #given.ids)
if call('ZCARD', times) - #dropped > given.most then
  dropped = call('ZRANGE', times, 0, call('ZCARD', times) - given.most - 1)
end
for _, id in ipairs(dropped) do
  call('HDEL', sources, id)
  call('ZREM', times, id)
end
-- A tenant without calls leaves nothing.
call('EXPIRE', sources, given.keep_s)
call('EXPIRE', times, given.keep_s)
