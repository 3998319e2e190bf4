"""`validate --try`: the user's code on a few rows, without a model."""
