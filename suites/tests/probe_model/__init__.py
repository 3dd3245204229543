"""Training of the probe model (examples/probe_model), and the checkpoint that is shipped."""
