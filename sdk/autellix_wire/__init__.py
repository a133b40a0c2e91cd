"""The wire protocol between the client, the gateway and the engine plugin: names, ids and bodies."""
