"""Tests of layout, documents, Makefile, plugin, findings."""
