"""Speed of whole models: the original and the result side by side, and what every kernel takes."""
