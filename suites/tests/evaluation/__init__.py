"""Tests of LongBench v2."""
