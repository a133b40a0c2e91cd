-- Returns for each id of a call its origin and program, empty if two programs have it, nothing if it is unknown.
-- ARGV: gateway, JSON {tenant, ids, now, oldest, keep_s}
local given = cjson.decode(ARGV[2])
local sources, times = key('a', given.tenant), key('at', given.tenant)
local found = {}
for index, id in ipairs(given.ids) do
  local used = call('ZSCORE', times, id)
  found[index] = used and tonumber(used) > given.oldest and call('HGET', sources, id) or false
end
return found
