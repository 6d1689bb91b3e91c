"""Data that the repository ships: embeddings of 50 classes of CIFAR-100, and the network that they come from.

`README.md` beside this file says how both were made, `make.py` makes them.
"""
