"""Ground floor: the tables, events, features, splits and artifacts that rooms hand each other. Imports no other room."""
