"""Times attention of Ringlab and of other systems in turns, in one job, on the same tensors: python -m ringlab.peers."""
