"""Colours and line styles of all figures."""

# The colours of Okabe and Ito, which colour-blind readers can tell apart; STYLES change when the colours repeat.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
STYLES = ("-", "--", ":")
