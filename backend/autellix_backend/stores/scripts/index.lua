-- Returns the programs with running calls, and all programs, each in order of arrival. ARGV: gateway
return {call('ZRANGE', ACTIVE, 0, -1), call('ZRANGE', PROGRAMS, 0, -1)}
