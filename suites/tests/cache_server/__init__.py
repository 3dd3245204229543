"""Tests of the cache server, stores and remote stores."""
