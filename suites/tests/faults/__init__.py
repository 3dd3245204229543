"""Tests of planted and drawn faults."""
