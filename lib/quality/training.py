"""Training one head: Positions, fitted_start, fit, held_out_loss, best_learning_rate."""
# SKELETON
