"""`python -m drill` (see drill.command), and what the drill itself starts by that name.

src/, tests/helpers and checks must be on PYTHONPATH.
"""

import sys

from drill import command, inside

if sys.argv[1:2] == ["armed"]:
    raise SystemExit(inside.armed(sys.argv[2:]))
raise SystemExit(command.main(sys.argv[1:]))
