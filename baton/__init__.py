"""The one import name of everything that is installed. The folders beside this file are links to the repository's rooms."""
