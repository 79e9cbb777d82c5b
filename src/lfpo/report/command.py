"""`lfpo report`: writes the page of a run or a comparison, or prints its text, or writes its figures."""

from rich.console import Console

from lfpo.config.errors import UserError, nearest
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.report.html import data_of_folder, write_report
from lfpo.report.overview import print_overview
from lfpo.report.text import print_report
from lfpo.runs.directory import Run

USAGE = """usage: lfpo report FOLDER [FOLDER ...] [--text] [--figures]

(Re)write report.html in each FOLDER, written by lfpo train or lfpo compare, or a
folder of such runs, whose page lists them and draws them in one chart.

  --text      print it instead, for a terminal or a log file
  --figures   write FOLDER/figures/*.svg and *.pdf instead, for a paper"""
FLAGS = ("--text", "--figures", "--help", "-h")


def print_text(run: Run, console: Console | None = None) -> Json:
    """Print a run, a comparison or a folder of runs; returns the data of its page."""
    data = data_of_folder(run)
    if data["kind"] == "overview":
        print_overview(data, console)
    else:
        print_report(run, console, data)
    return data


def run_report(rest: list[str]) -> None:
    flags = {a for a in rest if a.startswith("-")}
    for flag in flags.difference(FLAGS):
        raise UserError(f"lfpo report: unknown option {flag!r}{nearest(flag, FLAGS)}")
    if flags & {"--help", "-h"}:
        print(USAGE)
        return
    names = [a for a in rest if a not in flags]
    if not names:
        raise UserError("lfpo report needs one or more folders, as written by lfpo train or lfpo compare")
    for folder in map(user_path, names):
        run = Run(folder)
        if "--text" in flags:
            print_text(run)
        if "--figures" in flags:
            from lfpo.report.figures import write_figures

            for path in write_figures(run):
                print(path)
        if not flags:
            print(write_report(run))
