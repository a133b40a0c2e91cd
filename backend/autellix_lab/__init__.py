"""The laboratory: simulator, workloads, replay and comparison, demo; the product never imports it."""
