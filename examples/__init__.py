"""Worked examples: networks made of the layers of gevit."""
