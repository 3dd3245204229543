"""The standing attack: hostile input for the whole command line, `make attack`. Not shipped.

In: an installation of kvproof, a seed, minutes. Out: inputs and broken rules by class. `line` finds
every verb and option by introspection, `values`, `mutations` and `materials` make the input,
`processes` runs it, `rules` judges what is left; each class of attacks is a module of `classes`.
"""
