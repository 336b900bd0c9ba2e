"""Compressed-tensors checkpoints."""

from service.sizing.model.quantization.compressed_tensors.reading import read_compressed_tensors

__all__ = ["read_compressed_tensors"]
