"""Tests of `kvproof serve` and its suites."""
