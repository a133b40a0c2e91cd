-- Returns the programs with running calls, and all programs, each in order of arrival. ARGV: gateway
if not is_member(ARGV[1]) then
  return redis.error_reply(NOT_MEMBER)
end
return {call('ZRANGE', ACTIVE, 0, -1), call('ZRANGE', PROGRAMS, 0, -1)}
