"""`make mutations` removes all ordering rules of the source."""

import re

import pytest

from tests.mutations.ordering_rules import ROOT, RULES, SOFT_RULES, mutated

ORDERING = re.compile(r"(?:order(?:->|\.)(?:before_\w+|publish|record_stream)|backend\.keep_for_stream)\(.*")
ELSEWHERE = {
    # Called by note_read, whose calls are rules.
    "csrc/torch/session/requests.cpp": {"order->before_read(state_.address_of(id), state_.nbytes_of(id));"},
}


@pytest.mark.parametrize("rule", RULES + SOFT_RULES, ids=lambda rule: rule.name)
def test_the_statement_of_a_rule_is_there_once(rule):
    assert f'is_dropped("{rule.name}")' in mutated(rule, (ROOT / rule.file).read_text())


def test_each_place_that_orders_streams_is_a_rule():
    for path in sorted((ROOT / "csrc/torch/session").glob("*.cpp")):
        file = str(path.relative_to(ROOT))
        statements = [rule.statement for rule in RULES + SOFT_RULES if rule.file == file]
        found = {call for call in ORDERING.findall(path.read_text()) if not any(call in each for each in statements)}
        assert found == ELSEWHERE.get(file, set()), file
