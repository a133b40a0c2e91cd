"""Program traces: schema, loader, generators, arrivals."""
