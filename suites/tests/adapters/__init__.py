"""Tests of targets, workers, adapters of engines, their environments."""
