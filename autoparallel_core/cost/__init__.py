"""See docs/explanation/architecture.md for what lives in this room."""
