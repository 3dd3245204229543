"""Block pool, tables, identity and prefix index: the core level of conformance."""
