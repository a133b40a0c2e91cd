-- Ends a session. Returns whether it existed, and the removed entries. ARGV: gateway, session
local gone = {}
local was_there = close(ARGV[2], {}, gone)
return {was_there and 1 or 0, gone}
