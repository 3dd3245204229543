"""Reports as terminal text, HTML, Markdown and JUnit.

In: a report. Out: text or files.
Imports `model`, `charts` and `values`.
"""
