"""Memory plans against arithmetic of their own, and a simulation."""
