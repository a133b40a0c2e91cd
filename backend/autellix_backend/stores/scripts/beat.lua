-- Records a heartbeat of a session. Returns 1 if it existed, 0 if not, 2 if it has another owner. ARGV: gateway,
-- session, time, then `open` to start it, `merge` to start it and keep a later heartbeat, or `refresh` to do
-- nothing if it is unknown; owner or nothing.
local session, owner = ARGV[2], ARGV[5]
local last = call('ZSCORE', SESSIONS, session)
if last or ARGV[4] ~= 'refresh' then
  if owner ~= '' and call('HSETNX', OWNERS, session, owner) == 0 and ARGV[4] == 'open'
      and call('HGET', OWNERS, session) ~= owner then
    return 2
  end
  if not (last and ARGV[4] == 'merge' and tonumber(last) > tonumber(ARGV[3])) then
    call('ZADD', SESSIONS, ARGV[3], session)
  end
end
return last and 1 or 0
