"""One adapter per log format: each reads a foreign log, checks it, and writes the lake's tables."""
