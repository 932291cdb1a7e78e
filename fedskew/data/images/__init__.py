"""Images as people have them: of any size, on their side, grey or coloured, some of them broken."""
