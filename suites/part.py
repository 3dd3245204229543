"""The name of `kvproof.suites.play` in versions up to 0.13; goes with 0.15."""

from kvproof.suites.play import play as play
