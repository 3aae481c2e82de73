"""Best fit of the longest first: each sample into the fullest bin that still has room for it, or else into a new one.

Bins are known by the room that they have left. Samples of equal length are placed at once as far as they go, so the
work grows with the number of distinct lengths and rooms, and hardly with the number of samples.

Invariants: no bin holds more than the cap; a bin is opened only where no other has room; there are at most 11/9 of the
fewest bins possible and 4 more (Johnson and others, SIAM Journal on Computing 3(4), 1974).

Legend: S samples, longest first.
"""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.partition.ascending import AscendingNumbers

__all__ = ["best_fit", "best_fit_homes"]


def best_fit(tokens_S: Sequence[int], *, cap_tokens: int) -> list[list[int]]:
    """The samples of each bin, ascending; bins in the order of their first samples.

    Args:
        tokens_S: samples' lengths, descending, from 1 to the cap.
        cap_tokens: most tokens of a bin.
    """
    bins: list[list[int]] = []
    for sample, number in enumerate(best_fit_homes(tokens_S, cap_tokens=cap_tokens)):
        if number == len(bins):
            bins.append([sample])
        else:
            bins[number].append(sample)
    return bins


def best_fit_homes(tokens_S: Sequence[int], *, cap_tokens: int) -> list[int]:
    """The bin of each sample; bins are numbered in the order of their first samples, from 0.

    Args:
        tokens_S: samples' lengths, descending, from 1 to the cap.
        cap_tokens: most tokens of a bin.
    """
    if not tokens_S:
        return []
    assert 1 <= tokens_S[-1] <= tokens_S[0] <= cap_tokens, f"{tokens_S[-1]} to {tokens_S[0]} tokens, cap {cap_tokens}"
    bins = _Bins(cap_tokens)
    homes_S: list[int] = []
    place, samples = 0, len(tokens_S)
    while place < samples:
        length = tokens_S[place]
        first = place
        while place < samples and tokens_S[place] == length:
            place += 1
        if place == first + 1:
            homes_S.append(bins.place_one(length))
        else:
            bins.place_alike(length, place - first, homes_S)
    return homes_S


class _Bins:
    """Bins, and those of them that have room, by how much that is."""

    def __init__(self, cap_tokens: int) -> None:
        self._cap_tokens = cap_tokens
        self._opened = 0
        # Lists of rooms that no bin has any more are empty.
        self._bins_of_room: dict[int, list[int]] = {}
        self._rooms = AscendingNumbers()

    def place_one(self, length: int) -> int:
        """The bin of the next sample."""
        room = self._rooms.next_from(length)
        if room is None:
            room, number = self._cap_tokens, self._opened
            self._opened += 1
        else:
            waiting = self._bins_of_room[room]
            number = waiting.pop()
            if not waiting:
                self._rooms.remove(room)
        self._leave([number], room - length)
        return number

    def place_alike(self, length: int, count: int, homes: list[int]) -> None:
        """Append the bins of the next samples, all of one length."""
        while count:
            room = self._rooms.next_from(length)
            # A bin that takes one of them is the fullest with room for the next, as long as it has room.
            each = min((self._cap_tokens if room is None else room) // length, count)
            wanted = -(-count // each)
            if room is None:
                room = self._cap_tokens
                chosen = list(range(self._opened, self._opened + wanted))
                self._opened += wanted
            else:
                waiting = self._bins_of_room[room]
                chosen = waiting[-wanted:]
                del waiting[-wanted:]
                if not waiting:
                    self._rooms.remove(room)
            placed = min(count, each * len(chosen))
            left_of_last = placed - each * (len(chosen) - 1)
            homes += chosen if each == 1 else [number for number in chosen for _ in range(each)][:placed]
            count -= placed
            if left_of_last < each:
                self._leave([chosen.pop()], room - left_of_last * length)
            if chosen:
                self._leave(chosen, room - each * length)

    def _leave(self, bins: list[int], room: int) -> None:
        """Let bins have so much room left."""
        if not room:
            return
        waiting = self._bins_of_room.get(room)
        if waiting:
            waiting += bins
        else:
            self._bins_of_room[room] = bins
            self._rooms.add(room)
