"""Comparing objectives on one task: the same recipe, seeds and evaluation for each, and one table and figure."""
