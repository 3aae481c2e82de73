"""Number partitioning: samples into parts of near-equal cost, packing them under a cap, and how good it can get.

    differencing.py  the largest differencing method, into k parts, with or without equal counts
    refine.py        swaps that lower the heaviest part
    packing.py       a rank's samples into microbatches under the token cap
    bounds.py        what no plan can beat

Everything here is a pure function of its arguments, with ties broken by sample index: same input, same answer.
Minibatches are small (tens of samples) far more often than large, so the inner loops run on Python lists rather than
on arrays.
"""
