"""`python -m feedloop` is the command line."""

from feedloop.cli import main

main()
