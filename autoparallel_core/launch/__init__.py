"""Launch files: reading what people write and writing what starts. Names no engine; see docs/explanation/engines.md."""
