"""`python -m resid`, also under torchrun."""

import sys

from resid.cli import main

sys.exit(main())
