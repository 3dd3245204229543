"""Tests of models on pages, and parity."""
