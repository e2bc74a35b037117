"""Load generation, side-by-side benchmarks and their reports. Talks to servers over HTTP and starts none of them."""
