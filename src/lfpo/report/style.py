"""Colours and line styles of all charts."""

# Okabe-Ito colours tell apart for colour-blind readers too; line styles repeat after them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")


STYLES = ("-", "--", ":")
