"""Providers of kernels: ours, torch's, and those of other engines where they are installed."""
