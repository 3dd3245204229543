"""Other bugs with the properties of known failures, planted in engines: they must be reported."""
