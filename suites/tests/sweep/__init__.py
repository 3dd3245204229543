"""Tests of sweeps of kernels."""
