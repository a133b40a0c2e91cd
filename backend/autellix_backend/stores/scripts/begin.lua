-- Starts a call. Returns 0 if its key is running already, 1 if its program has another owner, else the values that
-- it inherits from its program, the ends of its parents, and whether the program that it adopts from is empty then.
-- ARGV: gateway, JSON {program, key, now, start, session?, name?, group?, owner?, class_id?, flags, most_flags,
-- intercepted_s, interceptions?, hint?, parents?, is_identified, adopts?}
local MOST_SEARCHED = 128

local function replaced(whole, old, new)
  return (string.gsub(whole, string.gsub(old, '%p', '%%%0'), (string.gsub(new, '%%', '%%%%'))))
end

local function shift(left, p, field, value)
  call('HSET', left, field, text(math.max(number(call('HGET', left, field)) - value, 0)))
  add(p, field, value)
end

-- Move the service of a call, the first of its program, from another program.
local function shift_service(program, given, services)
  local left, p = key('p', given.program), key('p', program)
  local service, sum = number(call('HGET', p, 'service_s')), 0
  for _, value in ipairs(services) do
    service, sum = merged(given.rule, service, value), sum + value
  end
  call('HSET', p, 'service_s', text(service))
  if given.rule == 'add' then
    call('HSET', left, 'service_s', text(math.max(number(call('HGET', left, 'service_s')) - sum, 0)))
  elseif call('HDEL', key('e', given.program), given.path_id) == 1 then
    local longest = 0
    for _, path in ipairs(call('HVALS', key('e', given.program))) do
      longest = math.max(longest, tonumber(path))
    end
    call('HSET', left, 'service_s', text(longest))
    call('HSET', key('e', program), given.path_id, text(services[#services]))
  end
end

-- Move a finished call, each attempt of it, from another program; return 1 if it was the last one.
local function adopt(program, given)
  local left, p, h = key('p', given.program), key('p', program), key('h', given.program)
  if call('EXISTS', left) == 0 or left == p then
    return 0
  end
  local entries = call('LRANGE', h, -MOST_SEARCHED, -1)
  for index = #entries, 1, -1 do
    local entry = entries[index]
    if string.find(entry, given.call, 1, true) then
      local start, finish, ending = string.match(entry, '^(.-)\n(.-)\n(.*)$')
      call('LREM', h, -1, entry)
      start = replaced(replaced(start, given.old, given.new), given.flag .. ',', '')
      start = string.gsub(replaced(start, given.flag, ''), '"parents":%b[]', '"parents":[]')
      call('LPUSH', key('h', program), start .. '\n' .. finish .. '\n' .. replaced(ending, given.old, given.new))
      local charge = cjson.decode(ending)
      local total = 0
      for _, value in ipairs(charge.services_s) do
        total = total + value
      end
      shift_service(program, given, charge.services_s)
      shift(left, p, 'wait_s', charge.table_wait_s)
      shift(left, p, 'finished_calls', 1)
      shift(left, p, 'total_service_s', total)
      for _, field in ipairs({'prompt_tokens', 'cached_tokens', 'output_tokens'}) do
        shift(left, p, field, tonumber(charge[field]) or 0)
      end
      local began = cjson.decode(start).start_s
      if began < tonumber(call('HGET', p, 'created')) then
        call('HSET', p, 'created', text(began))
      end
    end
  end
  if number(call('HGET', left, 'finished_calls')) == 0 and call('EXISTS', key('r', given.program)) == 0 then
    return 1
  end
  return 0
end

local start = cjson.decode(ARGV[2])
local program, now = start.program, text(start.now)
if call('HEXISTS', key('r', program), start.key) == 1 then
  return 0
end
if start.owner then
  local owner = call('HGET', key('p', program), 'owner')
  if owner and owner ~= start.owner then
    return 1
  end
end
local p = ensure(program, now)
if start.owner then
  call('HSET', p, 'owner', start.owner)
end
local has_emptied = start.adopts and adopt(program, start.adopts) or 0
run(program, ARGV[1], start.key, start.start)
call('HSET', p, 'arrival', now)
call('HDEL', p, 'ended')
place(program, now)
if start.name then
  call('HSETNX', p, 'name', start.name)
end
if start.group then
  call('HSETNX', p, 'group', start.group)
end
set_class(p, start)
if start.is_identified then
  call('HDEL', p, 'unidentified')
else
  call('HSET', p, 'unidentified', '1')
end
if #start.flags > 0 then
  add_flags(p, start.flags, start.most_flags)
end
if start.interceptions then
  add(p, 'intercepted_s', start.intercepted_s)
  call('HSET', p, 'last_interceptions', start.interceptions)
end
if start.session then
  keep(program, start.session)
end
local ends = {}
for _, parent in ipairs(start.parents or {}) do
  ends[#ends + 1] = call('HGET', key('e', program), parent) or ''
end
local known = call('HMGET', p, 'service_s', 'wait_s', 'finished_calls', 'prompt_tokens', 'cached_tokens',
  'output_tokens', 'created')
return {known, ends, has_emptied}
