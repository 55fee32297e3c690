"""plain_negatives, dominant_tokens (plain references); NextToken, TokenFrequencies, sample, SAMPLERS, METHOD, CHUNK: as in old.quality.negatives and distributions."""
# SKELETON

METHOD = "mixed-excluded"
