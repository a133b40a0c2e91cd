-- A gateway joins under a new id and takes over the calls of its previous one, whose late commands will be
-- rejected. Returns the table's epoch and the last entry of the stream of ends. ARGV: previous id or nothing,
-- id, lease's end, epoch for an empty table
local old, new = ARGV[1], ARGV[2]
if call('SETNX', tag .. ':epoch', ARGV[4]) == 1 then
  old = ''
end
if old ~= '' then
  if call('EXISTS', key('g', old)) == 1 then
    call('RENAME', key('g', old), key('g', new))
  end
  call('ZREM', GATEWAYS, old)
  call('SREM', GONE, old)
end
call('ZADD', GATEWAYS, ARGV[3], new)
local last = call('XREVRANGE', ENDS, '+', '-', 'COUNT', 1)
return {call('GET', tag .. ':epoch'), last[1] and last[1][1] or '0-0'}
