"""Prices, machines and other records of the catalogue, and the checks they pass."""
