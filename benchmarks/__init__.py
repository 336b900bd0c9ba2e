"""Measurements, not tests."""
