"""Experimental parts: objectives that no recipe of the package uses, and models with noise of another kind.

Each is found by its name in the settings, like every other part. No other package of lfpo imports this one: the plain
dicts that register variants name its modules as text. docs/contrib.md says what is promised of them.
"""
