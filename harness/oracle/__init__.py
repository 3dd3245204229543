"""The expected state of a target: slots, cached content, requests, steps.

In: operations and answers of a target, from `harness.session`. Out: facts and expectations.
Imports `contract` and `model`.
"""
