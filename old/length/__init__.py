"""Length control: progress signals on decoder inputs, and how well they make a model stop at the requested length."""
