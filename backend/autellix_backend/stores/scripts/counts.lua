-- Returns the numbers of programs, sessions, running calls and the programs of those. ARGV: gateway
local running = 0
for _, gateways in ipairs({call('ZRANGE', GATEWAYS, 0, -1), call('SMEMBERS', GONE)}) do
  for _, gateway in ipairs(gateways) do
    running = running + call('HLEN', key('g', gateway))
  end
end
return {call('ZCARD', PROGRAMS), call('ZCARD', SESSIONS), running, call('ZCARD', ACTIVE)}
