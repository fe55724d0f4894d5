"""Auto-parallelism advisor: public API (imports are lazy)."""
