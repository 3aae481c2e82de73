"""Number partitioning: samples into parts of near-equal cost, packing them under a cap, and how good it can get.

    balance.py       items into parts of near-equal time: free or equal counts, loads, speeds, a cap; quick at any size
      task.py        what is asked for, and how good an arrangement is
      dealing.py     first arrangements, item by item
      exchange.py    rounds of exchanges between parts that even them out
      arrangement.py items in the slots of parts, and their exchanges
      nearest.py     the best exchange of a pair of parts
      exhaustive.py  all arrangements of very few items
    differencing.py  the largest differencing method, into k parts, with or without equal counts
    refine.py        swaps that lower the heaviest part
    packing.py       a rank's samples into microbatches under the token cap, of near-equal cost
    fewest.py        a rank's samples into as few microbatches as a search finds
    busiest.py       exchanges that shorten the busiest rank, each microbatch with its constant
    lockstep.py      microbatches in steps, for ranks that meet after each
      step_exchanges.py  exchanges that lower the heights of steps
    bounds.py        what no plan can beat; bounds_*.py, one kind of bound each
    exact.py         the best plan of a handful of samples, proven
      exact_sets.py  all sets of them

Everything here is a pure function of its arguments, with ties broken by sample index: same input, same answer.
Most minibatches are small (tens of samples): what runs on them only works on Python lists, what has to be quick at
thousands of samples too on arrays.
"""
