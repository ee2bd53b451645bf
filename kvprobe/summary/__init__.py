"""Numbers from records and samples: percentiles with intervals, activity, rates."""
