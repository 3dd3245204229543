"""Tests of states, experts, media, keys and other component suites."""
