"""The log of code that must go on."""

from __future__ import annotations

from sqla_shard.util.logs import careful_log


def test_a_record_names_the_function_that_wrote_it(caplog):
    careful_log("a").warning("lost")
    (record,) = caplog.records
    assert record.funcName == "test_a_record_names_the_function_that_wrote_it"
