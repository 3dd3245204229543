"""Tests of recordings of engines."""
