"""The simulator: a behaviour environment that makes logs, and replay, which judges policies on logs."""
