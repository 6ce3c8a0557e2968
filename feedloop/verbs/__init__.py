"""One file per group of verbs; each calls the front door of one room."""
