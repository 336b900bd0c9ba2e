"""How fast a deployment is: decode steps, prompts, times, throughput, promises.

`docs/performance.md` holds the formulas, what they were fitted to and how far off they are.
"""

from service.sizing.performance.calibration import UNCORRECTED, Compared, Correction, MeasuredPoint, Tier, corrected_by
from service.sizing.performance.measured import ServingPoint
from service.sizing.performance.objectives import CurvePoint, curve, keeps, largest_concurrency, largest_rate
from service.sizing.performance.parameters import vllm
from service.sizing.performance.prediction import Load, Prediction, Replica, compared, predict, state_of, tpot_ms
from service.sizing.performance.serving import State

__all__ = [
    "UNCORRECTED",
    "Compared",
    "Correction",
    "CurvePoint",
    "Load",
    "MeasuredPoint",
    "Prediction",
    "Replica",
    "ServingPoint",
    "State",
    "Tier",
    "compared",
    "corrected_by",
    "curve",
    "keeps",
    "largest_concurrency",
    "largest_rate",
    "predict",
    "state_of",
    "tpot_ms",
    "vllm",
]
