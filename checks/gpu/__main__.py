"""`python -m gpu`, with src/, tests/helpers and checks on PYTHONPATH: see gpu.command."""

from gpu.command import main

raise SystemExit(main())
