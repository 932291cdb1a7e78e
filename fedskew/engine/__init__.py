"""Trains and scores a stack of clients at once; knows about tensors, not about methods."""
