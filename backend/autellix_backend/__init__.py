"""The Autellix backend: gateway, engines and schedulers."""
