"""Paged prefill attention: chunks of new tokens over the cached context of their requests."""

from kvproof.kernels.paged_prefill.launch import paged_prefill
from kvproof.kernels.paged_prefill.plans import Plan

__all__ = ["Plan", "paged_prefill"]
