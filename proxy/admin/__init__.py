"""The admin API, and what it shows and changes on all worker processes: state, metrics, overrides."""
