"""The KV Cache Conformance Specification: rules, conformance classes, certificates.

In: the catalogue of properties, the records of a whole run. Out: the rules of a class, a
certificate, and its contradictions. Imports the suites' runner and the catalogue of faults; nothing
but verbs imports it.
"""
