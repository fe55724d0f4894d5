"""Model plugin: well-known models by name."""
