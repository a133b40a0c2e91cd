-- Returns the engine and program of the first id that is known, empty for an id of two programs, nothing if none is.
-- ARGV: gateway, JSON {tenant, ids, now, oldest, keep_s}
local given = cjson.decode(ARGV[2])
local sources, times = key('a', given.tenant), key('at', given.tenant)
for _, id in ipairs(given.ids) do
  local used = call('ZSCORE', times, id)
  if used and tonumber(used) > given.oldest then
    call('ZADD', times, text(given.now), id)
    call('EXPIRE', sources, given.keep_s)
    call('EXPIRE', times, given.keep_s)
    return call('HGET', sources, id)
  end
end
return false
