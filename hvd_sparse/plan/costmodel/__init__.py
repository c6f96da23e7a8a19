"""The cost model: when a step ends, by its messages, and the plan with which it ends first.

Everything here is arithmetic on measured lines, on numpy alone.
"""
