"""Tables as people have them: reading them, what their columns are, and how rows become samples."""
