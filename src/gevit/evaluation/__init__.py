"""How good a trained model is: its scores on a set of images, and its answers to image files."""
