"""The specification, and certificates of its classes."""
