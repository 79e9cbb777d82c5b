"""The fault drill: faults in real training runs, which must end like an uninterrupted run. `make drill`."""
