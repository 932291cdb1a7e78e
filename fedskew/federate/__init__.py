"""The core: what the server and the clients of a stage agree on, and how they communicate."""
