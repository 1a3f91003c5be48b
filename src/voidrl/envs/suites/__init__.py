"""Facts about benchmark suites: games, tasks, scores, published tables."""
