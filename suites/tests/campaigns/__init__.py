"""Tests of campaigns over processes and Ray."""
