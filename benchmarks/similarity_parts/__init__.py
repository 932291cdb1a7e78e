"""The sections of docs/results/similarity.md: each measures numbers and tells them in words."""
