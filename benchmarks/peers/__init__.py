"""d1's public trainer and ours, side by side: `make peers`."""
