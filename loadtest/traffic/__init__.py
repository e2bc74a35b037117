"""What is asked, and when. Pure: the same seed and index always give the same prompt and the same instant."""
