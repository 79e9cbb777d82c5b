"""`python -m gpu`, with src/ and tests/ on PYTHONPATH: see gpu.command."""

from gpu.command import main

raise SystemExit(main())
