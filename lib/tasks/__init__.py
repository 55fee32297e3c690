"""Items to be judged, with gold: what a score of quality is held against."""
