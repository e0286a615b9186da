"""Data: data sets as tensors, the toys, and the tasks made of them."""
