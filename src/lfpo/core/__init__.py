"""One iteration of the algorithm, in torch. It imports lfpo.config and no other package of lfpo.

Phase 1: rollouts.FreshRollouts.roll samples from theta_old and scores; batch_metrics.gathered exchanges rewards.
Phase 2: learner.Learner.signal turns rewards into signals; Learner.update takes the optimiser steps of theta.
Phase 3: learner.Learner.move_old moves theta_old. algorithm.Algorithm.iterate calls them in this order.
"""
