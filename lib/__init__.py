"""The study's library: quality estimation with a Sigmoid Head (`lib.quality`) and length control with progress signals (`lib.length`)."""
