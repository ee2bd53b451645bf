"""Two runs of one workload: what differs in how they were made, and what that did to the numbers."""
