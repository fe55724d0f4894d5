"""Plans of modules for people: text tables and the page. The figures come from ``module_reading``."""
