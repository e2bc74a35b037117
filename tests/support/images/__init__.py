"""Builds and runs images without a container engine: the instructions that our Dockerfiles use, in a clean root of Debian."""
