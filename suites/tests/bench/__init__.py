"""Tests of benchmarks, workloads and traces."""
