"""The study's library: quality estimation with a Sigmoid Head (`old.quality`) and length control with progress signals (`old.length`)."""

import os

# Waiting threads sleep instead of spinning: several times faster where the cores are also doing something else. Read by OpenMP when
# torch is first imported, hence here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
