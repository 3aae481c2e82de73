"""Balanced data: minibatches planned over ranks, packed without padding, with losses that are exact for every split."""
