"""The one error for whatever a user, a file or the network got wrong."""


class BadInput(ValueError):
    """One clear sentence with the names and numbers; the command line prints it and exits with 2, nothing written."""
