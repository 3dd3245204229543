"""Values that reports are made of: numbers as text, tables, drawing primitives.

In: numbers. Out: text and SVG.
Imports the records.
"""
