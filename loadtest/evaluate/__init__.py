"""`loadtest eval`: exact-match accuracy over questions with numbers for answers, so that others can repeat it."""
