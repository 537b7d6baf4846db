// What was rematerialized, by the operator that did it and the line it came from.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "torch/dispatch/operators.h"
#include "torch/observe/source_lines.h"

namespace remint {

class Rematerializations {
 public:
  struct Row {
    const Operator* op = nullptr;
    std::uint32_t source = kNone;
    std::uint64_t times = 0;
    Nanoseconds cost = 0;
    // By the op of the program that needed it; null: a read, or the end.
    std::map<const Operator*, std::uint64_t> needed_by;
  };

  void add(const Operator* op, std::uint32_t source, Nanoseconds cost, const Operator* needed_by) {
    Row& row = rows_[{op, source}];
    row.op = op;
    row.source = source;
    ++row.times;
    row.cost += cost;
    ++row.needed_by[needed_by];
  }

  std::vector<Row> rows() const {
    std::vector<Row> all;
    for (const auto& [key, row] : rows_) all.push_back(row);
    return all;
  }

 private:
  std::map<std::pair<const Operator*, std::uint32_t>, Row> rows_;
};

}  // namespace remint
