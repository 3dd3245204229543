"""Suite `engine`: an engine's own loop over our shadow device: requests and time.

In: calls of the job that a target provides, choices of Hypothesis or of a seed. Out: the suite
`strategies.SUITE`, and `search`. Imports the framework; the engine runs in another
process.
"""
