"""What a trained model is worth: `gevit evaluate` and `gevit predict`."""
