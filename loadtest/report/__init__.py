"""Figures for people and scripts: text, Markdown, JSON, one HTML page. Every form shows the same `Table`s."""
