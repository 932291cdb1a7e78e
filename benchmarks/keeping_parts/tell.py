def page(lines, rounds, seeds, quick):
    return ""
