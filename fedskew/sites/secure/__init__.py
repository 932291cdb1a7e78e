"""Secure aggregation: the server learns the sum of what sites send, and no site's own."""
