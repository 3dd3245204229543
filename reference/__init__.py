"""The reference engine: the oracle, readable first. The control plane needs numpy only."""
