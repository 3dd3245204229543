"""Settings of engines, read from their own code, against the table in the engine's room."""
