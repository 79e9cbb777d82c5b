"""What every other package stands on: errors, configuration, keyed random numbers, batching, processes."""
