"""What must hold at the end of a run (thresholds), and what stops one (abort rules)."""
