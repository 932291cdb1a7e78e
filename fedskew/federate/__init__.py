"""The heart: what a stage's server and clients agree on, and how they talk."""
