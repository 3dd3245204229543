"""Tests of component suites, planted faults, levels."""
