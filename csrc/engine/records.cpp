#include "engine/records.h"

#include <algorithm>
#include <cassert>

namespace remint {
namespace {

// Takes a free slot of `table`, or a new one. A slot keeps the capacity of its vectors when it is used again.
template <typename T>
std::uint32_t take_slot(Table<T>& table, std::vector<std::uint32_t>& free_slots) {
  if (free_slots.empty()) return table.append();
  std::uint32_t slot = free_slots.back();
  free_slots.pop_back();
  return slot;
}

}  // namespace

StorageId Records::add_storage(Bytes nbytes) {
  StorageId id = take_slot(storages_, free_storages_);
  Storage& s = storages_[id];
  static_cast<StorageState&>(s) = StorageState{};
  s.values.clear();
  s.nbytes = nbytes;
  s.become(Residency::kEvicted);
  return id;
}

ValueId Records::add_value(StorageId storage, std::uint64_t tag) {
  ValueId id = take_slot(values_, free_values_);
  Value& v = values_[id];
  v.storage = storage;
  v.op = kNone;
  v.defined = false;
  v.offloaded = false;
  v.tag = tag;
  v.readers.clear();
  storages_[storage].values.push_back(id);
  return id;
}

OpId Records::add_op(Nanoseconds cost, std::uint64_t tag, const std::vector<ValueId>& inputs) {
  OpId id = take_slot(ops_, free_ops_);
  Op& op = ops_[id];
  op.cost = cost;
  op.tag = tag;
  op.remaining = 0;
  op.depth = 1;
  op.inputs.clear();
  op.outputs.clear();
  op.takes_over.clear();
  for (std::uint32_t i = 0; i < inputs.size(); ++i) {
    Value& v = values_[inputs[i]];
    op.inputs.push_back({inputs[i], static_cast<std::uint32_t>(v.readers.size())});
    v.readers.push_back({id, i});
    ++storages_[v.storage].readers;
    if (v.op != kNone) op.depth = std::max(op.depth, v.depth + 1);
  }
  return id;
}

void Records::add_output(OpId id, ValueId value, std::uint32_t takes_over) {
  Op& op = ops_[id];
  Value& v = values_[value];
  Storage& s = storages_[v.storage];
  // A storage's cost counts each op once, even if the op made several of its views.
  bool counted = std::any_of(s.values.begin(), s.values.end(),
                             [&](ValueId other) { return other != value && values_[other].op == id; });
  if (!counted) s.cost += op.cost;
  v.op = id;
  v.depth = op.depth;
  op.outputs.push_back(value);
  ++op.remaining;
  if (takes_over != kNone || !op.takes_over.empty()) {
    op.takes_over.resize(op.outputs.size(), kNone);
    op.takes_over.back() = takes_over;
  }
}

bool Records::dead(StorageId id) const {
  const Storage& s = storages_[id];
  if (s.references != 0) return false;
  if (s.readers == 0) return true;
  if (s.values.size() == 1) return false;
  // A view reads its own storage; that keeps nothing alive.
  std::uint32_t own = 0;
  for (ValueId v : s.values) {
    for (const Value::Reader& reader : values_[v].readers) {
      const auto& outputs = ops_[reader.op].outputs;
      bool all_own = std::all_of(outputs.begin(), outputs.end(), [&](ValueId output) {
        return output == kNone || values_[output].storage == id;
      });
      if (!all_own) return false;
      ++own;
    }
  }
  return own == s.readers;
}

void Records::remove_reader(ValueId value, std::uint32_t reader) {
  Value& v = values_[value];
  if (reader != v.readers.size() - 1) {
    v.readers[reader] = v.readers.back();
    ops_[v.readers[reader].op].inputs[v.readers[reader].input].reader = reader;
  }
  v.readers.pop_back();
  --storages_[v.storage].readers;
}

void Records::drop_output(OpId id, ValueId value, std::vector<StorageId>& orphans) {
  Op& op = ops_[id];
  auto slot = std::find(op.outputs.begin(), op.outputs.end(), value);
  assert(slot != op.outputs.end());
  *slot = kNone;
  values_[value].op = kNone;
  const bool last = --op.remaining == 0;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    StorageId parent = values_[op.inputs[i].value].storage;
    // Where only views are left of an op, they do not keep their own storage alive.
    if (last) remove_reader(op.inputs[i].value, op.inputs[i].reader);
    if (dead(parent)) orphans.push_back(parent);
  }
  if (!last) return;
  op.inputs.clear();
  if (dropped_ != nullptr) dropped_->ops.push_back(op.tag);
  free_ops_.push_back(id);
}

void Records::drop_recipe(ValueId value, std::vector<StorageId>& orphans) {
  const OpId op = values_[value].op;
  if (op == kNone) return;
  storages_[values_[value].storage].cost -= ops_[op].cost;
  drop_output(op, value, orphans);
}

void Records::read_instead(ValueId from, ValueId to) {
  Value& old = values_[from];
  Value& heir = values_[to];
  for (const Value::Reader& reader : old.readers) {
    Op::Input& input = ops_[reader.op].inputs[reader.input];
    input.value = to;
    input.reader = static_cast<std::uint32_t>(heir.readers.size());
    heir.readers.push_back(reader);
  }
  storages_[heir.storage].readers += static_cast<std::uint32_t>(old.readers.size());
  storages_[old.storage].readers -= static_cast<std::uint32_t>(old.readers.size());
  old.readers.clear();
}

void Records::drop(StorageId id, std::vector<StorageId>& orphans) {
  for (ValueId v : storages_[id].values) {
    if (values_[v].op != kNone) drop_output(values_[v].op, v, orphans);
  }
  Storage& s = storages_[id];
  for (ValueId v : s.values) free_values_.push_back(v);
  s.values.clear();
  s.become(Residency::kFree);
  if (dropped_ != nullptr) dropped_->storages.push_back(id);
  free_storages_.push_back(id);
  // A view's op that read this storage was dropped with it, which may have listed the storage itself.
  orphans.erase(std::remove(orphans.begin(), orphans.end(), id), orphans.end());
}

void Records::drop_readers(StorageId id) {
  for (ValueId v : storages_[id].values) {
    const std::vector<Value::Reader> readers(values_[v].readers.begin(), values_[v].readers.end());
    for (const Value::Reader& reader : readers) {
      Op& op = ops_[reader.op];
      bool own = std::all_of(op.outputs.begin(), op.outputs.end(), [&](ValueId output) {
        return output == kNone || values_[output].storage == id;
      });
      if (own) continue;
      // The last input takes the place of this one.
      auto place = std::find_if(op.inputs.begin(), op.inputs.end(),
                                [&](const Op::Input& input) { return input.value == v; });
      assert(place != op.inputs.end());
      std::uint32_t index = static_cast<std::uint32_t>(place - op.inputs.begin());
      remove_reader(v, place->reader);
      op.inputs[index] = op.inputs.back();
      if (index != op.inputs.size() - 1) {
        values_[op.inputs[index].value].readers[op.inputs[index].reader].input = index;
      }
      op.inputs.pop_back();
    }
  }
}

}  // namespace remint
