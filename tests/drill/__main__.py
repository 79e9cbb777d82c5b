"""`python -m drill`, with tests/ on PYTHONPATH: see drill.command."""

from drill.command import main

raise SystemExit(main())
