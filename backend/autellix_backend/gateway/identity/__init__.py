"""Who a call belongs to: program, thread, session, and the proof of it."""
