"""Verdict, script and replay of one failure agree, for every property."""
