"""Settings: every key of every command, how they are read and checked, errors and plug-ins. Imports no torch."""
