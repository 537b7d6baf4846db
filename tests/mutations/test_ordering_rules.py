"""`make mutations` removes all ordering rules of the source."""

import re

import pytest

from tests.mutations.ordering_rules import ROOT, RULES, mutated

ORDERING = re.compile(r"order(?:->|\.)(?:before_\w+|publish|record_stream)\(.*")
ELSEWHERE = {
    # Called by note_read, whose calls are rules.
    "csrc/torch/session/session.cpp": {"order->before_read(state_.address_of(id), state_.nbytes_of(id));"},
    # Of soft walls, which only CUDA has: tests/cuda/test_soft_wall.py.
    "csrc/torch/session/native_blocks.cpp": {"order->before_write(address, nbytes);"},
    "csrc/torch/session/op_call.cpp": {
        "order->record_stream(touched.storage->_mutable_data_ptr_no_checks().get(),",
    },
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_statement_of_a_rule_is_there_once(rule):
    assert f'is_dropped("{rule.name}")' in mutated(rule, (ROOT / rule.file).read_text())


def test_each_place_that_orders_streams_is_a_rule():
    for path in sorted((ROOT / "csrc/torch/session").glob("*.cpp")):
        file = str(path.relative_to(ROOT))
        statements = [rule.statement for rule in RULES if rule.file == file]
        found = {call for call in ORDERING.findall(path.read_text()) if not any(call in each for each in statements)}
        assert found == ELSEWHERE.get(file, set()), file
