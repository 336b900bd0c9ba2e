"""Bytes of a weight matrix under each way of storing it."""

from service.sizing.model.schemes.base import UNQUANTISED, Compute, ExpertStack, Scheme, Unquantised
from service.sizing.model.schemes.quantised import MarlinExperts, Padding, Quantised, Scale

__all__ = [
    "UNQUANTISED",
    "Compute",
    "ExpertStack",
    "MarlinExperts",
    "Padding",
    "Quantised",
    "Scale",
    "Scheme",
    "Unquantised",
]
