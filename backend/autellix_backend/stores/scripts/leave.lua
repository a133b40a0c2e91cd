-- Removes a gateway without running calls; the lease removes any other. ARGV: gateway
if call('EXISTS', key('g', ARGV[1])) == 0 then
  call('ZREM', GATEWAYS, ARGV[1])
end
return 1
