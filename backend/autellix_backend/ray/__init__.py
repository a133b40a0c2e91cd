"""What runs inside of Ray Serve: our balancer, for deployments that have no gateway of ours in front."""
