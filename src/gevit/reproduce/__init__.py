"""The paper's tables, run again: `gevit reproduce`.

A study is a table: a list of cells, each with what distinguishes its run from the others. A budget says how its runs
are trained. Every run leaves one JSON file; tables and plots are drawn from those alone.
"""
