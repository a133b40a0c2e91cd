-- Returns programs as they are: {values, sessions, running calls, finished calls}, nothing for one that is not
-- there. ARGV: gateway, `with` or `without` their finished calls, programs
local views = {}
for index = 3, #ARGV do
  local program = ARGV[index]
  local values = call('HGETALL', key('p', program))
  local view = {}
  if #values > 0 then
    local history = ARGV[2] == 'with' and call('LRANGE', key('h', program), 0, -1) or {}
    view = {values, call('ZRANGE', key('ps', program), 0, -1), call('HVALS', key('r', program)), history}
  end
  views[#views + 1] = view
end
return views
