"""Measured runs as the performance model takes them."""

from dataclasses import dataclass

from service.sizing.layouts import Layout
from service.sizing.performance.calibration import MeasuredPoint


@dataclass(frozen=True, slots=True, eq=False)
class ServingPoint:
    """One measured load of one deployment.

    Attributes
    ----------
    id, source : str
        Names it; where it was published or who measured it.
    version : str
        Release of vLLM as reported; empty: not reported.
    layout : Layout
        How the model was split.
    precision : str
        Of the weights, as reported; empty: not reported.
    point : MeasuredPoint
        The load, and what it took.
    is_shipped : bool
        Whether it came with the package: no link test here is of its machine.
    """

    id: str
    source: str
    version: str
    layout: Layout
    precision: str
    point: MeasuredPoint
    is_shipped: bool = False
