"""SigmoidHead(unembedding, bias, rank, scale, shift), sampled_loss, full_loss, softmax_loss, fit_start, unembedding_hash: as in old.quality.head."""
# SKELETON
