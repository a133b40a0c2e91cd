-- Returns a session's owner, empty if it has none, nothing if there is no such session. ARGV: gateway, session
if not call('ZSCORE', SESSIONS, ARGV[2]) then
  return false
end
return call('HGET', OWNERS, ARGV[2]) or ''
