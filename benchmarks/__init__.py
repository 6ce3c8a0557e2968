"""One script per claim of speed, memory or quality; each prints both sides and their ratio."""
