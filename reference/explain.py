"""`Explainer` as in versions up to 0.13, where it stood in front of its manager; goes with 0.15.

Use `kvproof.reference.observe.explainer.Explainer`, and the manager that it is attached to.
"""

from __future__ import annotations

from kvproof.reference.observe import explainer


class Explainer(explainer.Explainer):
    """Passes everything but explanations on to its manager."""

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the manager."""
        return getattr(self.manager, name)
