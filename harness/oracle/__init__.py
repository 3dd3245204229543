"""The state of the world as the harness knows it: slots, cached content, requests, steps.

In: operations and answers of a target, from `harness.session`. Out: facts and expectations.
Imports `contract`.
"""
