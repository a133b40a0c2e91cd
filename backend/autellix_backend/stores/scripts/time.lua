-- Returns the time here: seconds, microseconds.
return call('TIME')
