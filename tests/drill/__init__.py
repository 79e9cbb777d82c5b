"""The fault drill: what a week-long run meets, done to real runs. `lfpo drill`."""
