"""Training of the probe model (`lab.probe_model`), and the checkpoint that is shipped."""
