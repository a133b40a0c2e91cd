"""What operators see of the backend: metrics."""
