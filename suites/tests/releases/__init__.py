"""Tests of releases that no lock file is for, and of environments that are there."""
