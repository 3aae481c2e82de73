"""What recorded runs teach: costs that are fitted to them, and how far predictions are off.

observations     what the ranks of a run did, minibatch by minibatch, as arrays
rank_reader      one rank's spans, sorted
observed_checks  whether traces belong together
observe          from spans to arrays
meetings         collectives of all ranks, one beside the other
told             how much longer than others a rank was told to compute
terms, fits      robust least squares with intervals
compute_fits, transfers, steps, memory
                 one kind of cost each
calibrate        from runs to costs
measured         a run's figures in the words of a result
prediction       a recorded plan, simulated
match            whether a run is one of a scenario's
validate, validation_document
                 predicted against measured
replay           a run's own compute under the other synchronization
advise           which sync, policy and knobs suit a scenario, and why; of it:
  advice_candidates, advice_runs    what is compared, and its simulations
  advice_gain, advice_choice        how much faster, and which to advise
  advice_field, advice_knobs        the best of what is compared, and knobs turned on it, alone and in pairs
  advice_limits, advice_ladder, advice_regret
                                    why, step by step, and what if the model is wrong
  advice, advice_document           what is found, and its JSON document
simulated_run    run folders of what was simulated, to try all this on
"""
