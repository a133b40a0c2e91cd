-- Adds tokens to what tenants have used on a day, and returns their totals in the order given.
-- ARGV: gateway, day since 1970, JSON [[tenant, tokens], ...]
local used, totals = key('u', ARGV[2]), {}
for _, each in ipairs(cjson.decode(ARGV[3])) do
  totals[#totals + 1] = call('HINCRBY', used, each[1], text(each[2]))
end
-- Clocks of gateways may differ by a day at most.
call('EXPIRE', used, 2 * 86400)
return totals
