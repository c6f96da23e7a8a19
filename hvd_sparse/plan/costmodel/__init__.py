"""The cost model of a step's exchange, and the search for the plan with the shortest step.

All of it is arithmetic in numpy on measured costs.
"""
