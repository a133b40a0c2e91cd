-- Precedes the scripts of members. Rejects a gateway without a lease: it may have missed decisions, or that the
-- table was lost.
if not call('ZSCORE', GATEWAYS, ARGV[1]) then
  return redis.error_reply('NOTMEMBER the gateway has no lease')
end
