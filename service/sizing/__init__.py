"""The book of formulas: pure functions from a model, a machine and a workload to a deployment."""

from service.sizing.search import plan

__all__ = ["plan"]
