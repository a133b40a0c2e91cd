"""KV offload for stock vLLM: contexts in host memory, moved by our kernels, kept by programs."""
