"""The KV Cache Conformance Specification: rules, conformance classes, certificates."""
