"""The studies by name: the paper's tables, and what goes past them. Each is a function of the budget."""

from collections.abc import Callable

from gevit.reproduce.studies.angles import angles
from gevit.reproduce.studies.cifar10 import cifar10
from gevit.reproduce.studies.encodings import encodings
from gevit.reproduce.studies.reflections import reflections
from gevit.reproduce.studies.relative import relative
from gevit.reproduce.studies.sizes import sizes
from gevit.reproduce.studies.table1 import table1
from gevit.reproduce.studies.table2 import table2
from gevit.reproduce.studies.table3 import table3
from gevit.reproduce.studies.table4 import table4
from gevit.reproduce.studies.tissue import tissue
from gevit.reproduce.study import Study

__all__ = ["STUDIES"]

STUDIES: dict[str, Callable[[str], Study]] = {
    study.__name__: study
    for study in (table1, table2, table3, table4, cifar10, encodings, relative, reflections, tissue, sizes, angles)
}
