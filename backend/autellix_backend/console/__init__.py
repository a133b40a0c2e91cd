"""What operators see of a gateway: explanations, history, overview, events and the live page."""
