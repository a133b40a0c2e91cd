-- Records a heartbeat of a session. Returns whether it existed. ARGV: gateway, session, time, then `open` to
-- start it, `merge` to start it and keep a later heartbeat, or `refresh` to do nothing if it is unknown.
local last = call('ZSCORE', SESSIONS, ARGV[2])
if last or ARGV[4] ~= 'refresh' then
  if not (last and ARGV[4] == 'merge' and tonumber(last) > tonumber(ARGV[3])) then
    call('ZADD', SESSIONS, ARGV[3], ARGV[2])
  end
end
return last and 1 or 0
