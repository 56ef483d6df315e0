"""Which member of a group serves which partition: evenly, and with as few moves as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign(partitions: int, members: Sequence[str], before: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Shares of `partitions` for `members`, differing by at most one.

    A member keeps the partitions it had, up to its share; the rest goes to those that have fewest, in the order in
    which they joined.
    """
    if not members:
        return {}
    low, extra = divmod(partitions, len(members))
    shares: dict[str, list[int]] = {}
    taken: set[int] = set()
    # Those that had most keep the larger shares: any other choice would move a partition needlessly.
    by_need = sorted(members, key=lambda member: -len(before.get(member, ())))
    for rank, member in enumerate(by_need):
        quota = low + (1 if rank < extra else 0)
        kept = [p for p in before.get(member, ()) if p < partitions and p not in taken][:quota]
        taken.update(kept)
        shares[member] = kept
    free = [p for p in range(partitions) if p not in taken]
    for rank, member in enumerate(by_need):
        quota = low + (1 if rank < extra else 0)
        while len(shares[member]) < quota:
            shares[member].append(free.pop(0))
    return {member: sorted(shares[member]) for member in members}
