"""AutoGen integration of the Autellix client."""
