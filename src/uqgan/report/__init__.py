"""Runs in pictures: the report on one page, its parts, the paper's figures, and pages of predictions."""
