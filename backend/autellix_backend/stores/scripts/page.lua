-- Returns the number of the last program looked at, empty at the end of the list, and names with their numbers.
-- ARGV: gateway, `active` or `idle`, number of the program before, most programs to look at, prefix
local is_active, prefix = ARGV[2] == 'active', ARGV[5]
local most = tonumber(ARGV[4])
local found = call('ZRANGEBYSCORE', is_active and ACTIVE or PROGRAMS, '(' .. ARGV[3], '+inf', 'WITHSCORES',
  'LIMIT', 0, most)
local names = {}
for index = 1, #found, 2 do
  local name = found[index]
  if string.sub(name, 1, #prefix) == prefix and (is_active or not call('ZSCORE', ACTIVE, name)) then
    names[#names + 1], names[#names + 2] = name, found[index + 1]
  end
end
return {#found == 2 * most and found[#found] or '', names}
