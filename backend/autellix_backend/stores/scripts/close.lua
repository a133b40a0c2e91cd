-- Ends a session, and at most `most` of its programs. Returns whether it existed, how many programs were looked at,
-- and the removed entries. ARGV: gateway, session, most, `first`, or `more` to go on
local gone = {}
local was_open = ARGV[4] == 'first' and shut(ARGV[2])
local taken = sweep(ARGV[2], {}, gone, tonumber(ARGV[3]))
return {(was_open or taken > 0) and 1 or 0, taken, gone}
