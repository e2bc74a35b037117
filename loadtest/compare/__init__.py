"""`loadtest compare`: which metrics of two runs differ, and how sure that is."""
