"""Tests of LongBench v2 and the probe model."""
