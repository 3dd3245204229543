"""Grouped transfers: bytes against an index oracle (G1-G6, G9, G10), and their speed on a CPU."""
