"""Tests of kernels, their providers and timing."""
