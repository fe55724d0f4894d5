"""Makes ``problem_builders`` importable from every test below this directory."""
