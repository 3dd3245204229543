"""Tests of the engine of the reference, its tiers and its explanations."""
