"""Tests of the oracle of the conformance suite."""
