"""One iteration of the algorithm, in plain torch: sample, score, views, loss, step, average. It imports lfpo.config and
nothing else of lfpo; everything else hangs on it."""
