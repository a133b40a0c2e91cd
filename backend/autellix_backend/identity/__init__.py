"""Who a call belongs to: program and thread, by what its client sends."""
