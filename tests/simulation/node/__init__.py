"""The simulation of a whole node: group commit, dispatch and fronts on a virtual clock, thread and network."""
