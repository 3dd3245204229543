"""Tests of the cache manager of the reference."""
