"""The patches of other modules, and the switch that applies and reverts them."""
