"""What a search writes so that nothing is lost: checkpoints, models, last variables."""
