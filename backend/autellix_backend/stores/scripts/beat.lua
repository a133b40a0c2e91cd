-- Records a heartbeat of a session. Returns 1 if it existed, 0 if not, 2 if it has another owner. ARGV: gateway,
-- session, time, then `open` to start it, or `refresh` to do nothing if it is unknown; owner or nothing.
local session, owner = ARGV[2], ARGV[5]
local last = call('ZSCORE', SESSIONS, session)
if last or ARGV[4] ~= 'refresh' then
  if owner ~= '' and call('HSETNX', OWNERS, session, owner) == 0 and call('HGET', OWNERS, session) ~= owner then
    return 2
  end
  call('ZADD', SESSIONS, ARGV[3], session)
end
return last and 1 or 0
