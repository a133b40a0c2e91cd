"""Our balancer inside Ray Serve, for deployments without an Autellix gateway in front.

Engines that a gateway has Ray place are in `engines/ray_replica.py`.
"""
