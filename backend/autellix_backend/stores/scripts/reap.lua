-- A round of the reaper, at most `most` things of a kind; it renews the gateway's lease.
-- ARGV: gateway, now, lease's end, last heartbeat of a silent session, last event of an idle program, most,
-- last entry of the stream of ends that the gateway has seen
-- Returns the time here, lost sessions, programs that ended with them, idle programs, removed entries, the
-- running calls of gateways without a lease ({gateway, call, program}), and new entries of the stream of ends.
call('ZADD', GATEWAYS, ARGV[3], ARGV[1])
local most = tonumber(ARGV[6])
local sessions = call('ZRANGEBYSCORE', SESSIONS, '-inf', ARGV[4], 'LIMIT', 0, most)
local ended, gone = {}, {}
for _, session in ipairs(sessions) do
  close(session, ended, gone)
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
  local calls = call('HGETALL', key('g', gateway))
  for index = 1, math.min(#calls, 2 * most), 2 do
    lost[#lost + 1] = {gateway, calls[index], calls[index + 1]}
  end
  if #calls == 0 then
    call('SREM', GONE, gateway)
  end
end
local news = call('XREAD', 'COUNT', most, 'STREAMS', ENDS, ARGV[7])
return {call('TIME'), sessions, ended, idle, gone, lost, news and news[1] and news[1][2] or {}}
