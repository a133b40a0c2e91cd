-- A gateway without running calls leaves; one with some is left to its lease. ARGV: gateway
if call('EXISTS', key('g', ARGV[1])) == 0 then
  call('ZREM', GATEWAYS, ARGV[1])
end
return 1
