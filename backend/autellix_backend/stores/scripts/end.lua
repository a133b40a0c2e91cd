-- Ends a program. Returns whether it existed, and its removed entry. ARGV: gateway, program
local was_there, entry = finish(ARGV[2])
return {was_there and 1 or 0, {entry}}
