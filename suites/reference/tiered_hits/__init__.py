"""Tiers below a tiny pool beside a pool without end."""
