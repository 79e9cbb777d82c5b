"""The configuration of `lfpo watch`."""

from dataclasses import dataclass

from lfpo.config.checks import Port, check_ranges


@dataclass
class WatchConfig:
    """Configuration of `lfpo watch`."""

    run: str
    """The run's folder, as given to lfpo train by output_dir, or a folder of runs."""

    text: bool = False
    """Print the run in the terminal, again whenever it has changed, instead of serving a page."""

    host: str = "127.0.0.1"
    """Address to listen at. Whoever reaches it can read the run; from another machine, forward the port by ssh."""

    port: Port = 8765
    """Port to listen at; 0 takes a free one."""

    def __post_init__(self) -> None:
        check_ranges(self)
