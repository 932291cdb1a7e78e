"""Everything users pick by name: entries, their knobs, users' own functions, installed plug-ins."""
