"""Tests of compare, history, merge, matrix and thresholds."""
