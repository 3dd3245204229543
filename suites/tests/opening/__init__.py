"""Targets when they are opened: names, releases, entry points."""
