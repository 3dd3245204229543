"""All that is known of Dynamo: records of bugs, their predicates, findings, histories.

In: violations and their histories. Out: which known bug they are. Imports the
framework and the harness.
"""
