"""`python -m drill`, with tests/ on PYTHONPATH (see drill.command), and what the drill itself starts by that name."""

import sys

from drill import command, harness, inside

STARTED = {"armed": inside.armed, "namespaced": harness.namespaced}
start = STARTED.get("".join(sys.argv[1:2]))
raise SystemExit(start(sys.argv[2:]) if start else command.main(sys.argv[1:]))
