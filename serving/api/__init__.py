"""The HTTP API: feeds out, events in, health and metrics, and the page that shows them."""
