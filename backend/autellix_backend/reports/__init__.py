"""The messages between engine, gateway and client: reports and receipts of calls, snapshots of engines."""
