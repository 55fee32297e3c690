"""Length control: signals, models that read them, fine-tuning, generation, experiments."""
