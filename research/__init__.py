"""Studies behind docs/comparison.md. Nothing here is part of the package."""
