"""`lfpo plan`: memory, hours and cost of a run before it starts, without loading weights."""
