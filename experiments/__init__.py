"""Grids of runs: what to run, who runs it, how far it is, and what came out."""
