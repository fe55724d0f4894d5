"""Operator granularity: free shardings of named axes over a device mesh, chosen by one assignment problem."""
