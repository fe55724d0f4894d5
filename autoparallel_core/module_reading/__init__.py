"""What a plan of a module says: tables by repeated layer, the difference of two plans, why a node is placed as it is.

Reads the plan's document alone, so none of it needs the tensor library.
"""
