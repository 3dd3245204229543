"""Makers of published figures and soaks: kept with the tests, not shipped."""
