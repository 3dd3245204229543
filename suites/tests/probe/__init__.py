"""Tests of the probe of running servers."""
