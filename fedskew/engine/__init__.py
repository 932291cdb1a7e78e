"""Trains and scores a stack of clients at once; knows tensors and streams, never methods."""
