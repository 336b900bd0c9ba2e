"""The book of formulas: pure functions from a model, a machine and a workload to a deployment."""
