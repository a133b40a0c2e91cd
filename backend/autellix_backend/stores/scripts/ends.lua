-- Returns the next entries of the stream of ends. ARGV: gateway, the entry before them, the last entry, most
return call('XRANGE', ENDS, '(' .. ARGV[2], ARGV[3], 'COUNT', ARGV[4])
