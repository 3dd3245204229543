"""Work units over many processes, of this machine or of a Ray cluster."""
