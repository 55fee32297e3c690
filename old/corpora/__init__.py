"""Text the study trains on and measures with; each module documents one source and its columns."""
