-- A round of the reaper, at most about `most` things of a kind; it renews the gateway's lease.
-- ARGV: gateway, now, lease's end, last heartbeat of a silent session, last event of an idle program, most
-- Returns the table's time, the number of things of closed sessions, lost sessions, programs that ended with them,
-- idle programs, removed entries, and the running calls of gateways without a lease ({gateway, call, program}).
call('ZADD', GATEWAYS, ARGV[3], ARGV[1])
local most = tonumber(ARGV[6])
local sessions, ended, gone, taken = {}, {}, {}, 0
local function take(session)
  taken = taken + math.max(sweep(session, ended, gone, most - taken), 1)
  return taken < most
end
-- What a gateway that has gone left unfinished comes first.
for _, session in ipairs(call('ZRANGE', CLOSING, 0, 9)) do
  if not take(session) then
    break
  end
end
if taken < most then
  for _, session in ipairs(call('ZRANGEBYSCORE', SESSIONS, '-inf', ARGV[4], 'LIMIT', 0, most)) do
    sessions[#sessions + 1] = session
    shut(session)
    if not take(session) then
      break
    end
  end
end
local idle = call('ZRANGEBYSCORE', IDLE, '-inf', ARGV[5], 'LIMIT', 0, most)
for _, program in ipairs(idle) do
  gone[#gone + 1] = drop(program)
end
for _, gateway in ipairs(call('ZRANGEBYSCORE', GATEWAYS, '-inf', '(' .. ARGV[2])) do
  call('ZREM', GATEWAYS, gateway)
  call('SADD', GONE, gateway)
end
local lost = {}
for _, gateway in ipairs(call('SMEMBERS', GONE)) do
  if call('EXISTS', key('g', gateway)) == 0 then
    call('SREM', GONE, gateway)
  elseif #lost < most then
    local calls = call('HSCAN', key('g', gateway), 0, 'COUNT', most)[2]
    for index = 1, #calls, 2 do
      lost[#lost + 1] = {gateway, calls[index], calls[index + 1]}
    end
  end
end
return {text(table_time()), taken, sessions, ended, idle, gone, lost}
