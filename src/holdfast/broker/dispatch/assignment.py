"""Which member of a group serves which partition: even, and with as few moves as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign(partitions: int, members: Sequence[str], before: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Shares of `partitions` for `members`, differing by at most one.

    A member keeps what it had, as far as its share goes; the rest is handed to those that have least, in the order in
    which they joined.
    """
    if not members:
        return {}
    low, extra = divmod(partitions, len(members))
    shares: dict[str, list[int]] = {}
    taken: set[int] = set()
    # Those that had most keep the larger shares: every other choice would move a partition for nothing.
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
