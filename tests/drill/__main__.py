"""`python -m drill`, with tests/ on PYTHONPATH: see drill.command. `python -m drill armed ...`: see drill.inside."""

import sys

from drill import inside
from drill.command import main

raise SystemExit(inside.armed(sys.argv[2:]) if sys.argv[1:2] == ["armed"] else main())
