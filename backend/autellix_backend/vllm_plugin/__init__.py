"""Program-aware scheduling inside vLLM: a scheduler class that stock vLLM loads by name."""
