"""The Autellix client: importing it instruments the process."""
