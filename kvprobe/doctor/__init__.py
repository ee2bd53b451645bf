"""Before a load test: is everything in place, on this machine and at the target?"""
