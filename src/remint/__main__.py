"""`python -m remint` is the command line."""

import sys

from remint.cli import main

sys.exit(main())
