"""Grids of runs: definition, execution, progress and results."""
