"""Tests of memory plans."""
