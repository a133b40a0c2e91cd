-- Adds tokens to what tenants have used on a day, and returns their totals in the order given. A total is at
-- least what the gateway knew before: a table that was lost begins with what its gateways remember.
-- ARGV: gateway, day since 1970, JSON [[tenant, tokens, known], ...]
local used, totals = key('u', ARGV[2]), {}
for _, each in ipairs(cjson.decode(ARGV[3])) do
  local total = math.max(tonumber(call('HGET', used, each[1]) or 0), each[3]) + each[2]
  call('HSET', used, each[1], text(total))
  totals[#totals + 1] = total
end
-- Clocks of gateways may differ by a day at most.
call('EXPIRE', used, 2 * 86400)
return totals
