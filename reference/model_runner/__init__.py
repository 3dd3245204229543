"""Hugging Face models behind the protocol `Model`, unmodified, on paged memory."""
