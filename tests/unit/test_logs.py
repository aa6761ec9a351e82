"""The log of code that must go on."""

from __future__ import annotations

from pathlib import Path

import sqla_shard
from sqla_shard.util.logs import careful_log


def test_a_record_names_the_function_that_wrote_it(caplog):
    careful_log("a").warning("lost")
    (record,) = caplog.records
    assert record.funcName == "test_a_record_names_the_function_that_wrote_it"


def test_every_log_of_the_package_is_careful():
    modules = [*Path(sqla_shard.__file__).parent.rglob("*.py")]
    assert modules
    for module in modules:
        assert "\n_log = logging.getLogger(" not in module.read_text("utf-8"), module
