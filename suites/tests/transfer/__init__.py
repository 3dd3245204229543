"""Tests of grouped transfers."""
