"""shardwise: how to run an open-weights model on vLLM."""

__version__ = "0.1.0"

RULES_VERSION = 1
"""Raised whenever the same question on the same catalogue may get another answer."""
