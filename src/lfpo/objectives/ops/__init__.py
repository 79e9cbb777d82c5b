"""Tensor operations that the objectives are made of."""
