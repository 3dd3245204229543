"""Generators of the tables and pages in docs/.

In: properties, rules, profiles. Out: Markdown.
Imports all suites.
"""
