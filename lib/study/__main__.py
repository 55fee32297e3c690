"""`python -m lib.study`: see lib/study/run.py."""

import sys

from lib.study.run import main

sys.exit(main())
