"""Routes of the gateway: calls, pass-through requests, sessions, programs, engines, admin and events."""
