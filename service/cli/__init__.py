"""One module for each command of the command line.

A command module has `configure(parser)`, which adds its arguments, and `run(arguments, settings)`, which returns the
exit status. It imports what it needs inside `run`, so that a start takes as little as it can.
"""
