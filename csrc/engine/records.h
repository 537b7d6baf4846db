// Records: which op made which value from which values, and the state of the storages that hold them.
//
//   op ──makes──▶ value ──lives in──▶ storage          value ──read by──▶ op
//
// A storage usually holds one value. It holds more where a trace counts views as ops of their own (as DTR's
// reference does): the first value is the storage's root, the others are views, which are recomputed one by
// one after the storage was evicted.
//
// Dead records, which nothing alive can ever need, are dropped as soon as they die (Lifetimes::collect). So
// the tables do not grow with the length of a run, and no walk meets a dead record.
#pragma once

#include <cassert>
#include <vector>

#include "base/containers.h"
#include "base/types.h"
#include "engine/residency.h"

namespace remint {

// Whether the program, which frees these bytes, will have the same bytes again before a recipe needs them.
enum class DueBack : std::uint8_t { kNo, kPerhaps, kSurely };

struct StorageState {
  Bytes nbytes = 0;
  Nanoseconds cost = 0;     // of the distinct ops that made its values
  Nanoseconds last = 0;     // when it was last accessed
  std::uint64_t order = 0;  // of becoming a candidate; later is larger
  BlockId block = kNone;
  std::uint32_t candidate_index = kNone;
  std::uint32_t locks = 0;       // by ops that run or wait
  std::uint32_t read_locks = 0;  // by readers outside of all ops
  std::uint32_t references = 0;  // tensors of the program that are on it
  std::uint32_t readers = 0;     // ops that read one of its values
  Residency residency = Residency::kFree;
  // What may happen to it.
  bool pinned = false;  // it is never evicted
  bool fixed = false;   // its address is known elsewhere: it is never moved
  bool constant =
      false;  // no op made it: it is not freed before the program releases it, not even by banishing
  DueBack due_back = DueBack::kNo;
  bool released_while_locked = false;  // the last reference went while it was locked

  // Whether the slot of the table is taken.
  bool in_use() const { return residency != Residency::kFree; }
  bool has_bytes() const { return remint::has_bytes(residency); }
  bool is_kept() const { return remint::is_kept(residency); }
  bool locked() const { return locks > 0 || read_locks > 0; }
  // Whether it may be moved while a kernel runs.
  bool movable() const { return !fixed && !locked(); }

  // The only place where the state changes.
  void become(Residency to) {
    assert(is_legal(residency, to));
    residency = to;
  }
};

struct Storage : StorageState {
  SmallVector<ValueId, 2> values;  // root first
};

struct Value {
  StorageId storage = kNone;
  OpId op = kNone;  // kNone: no recipe, a constant
  bool defined = false;
  bool offloaded = false;   // it is in the copy of its storage, which is offloaded
  std::uint64_t tag = 0;    // the caller's name for it
  std::uint32_t depth = 0;  // of its recipe, if it has one: that of the op
  // Ops that read this value, with the position among their inputs.
  struct Reader {
    OpId op;
    std::uint32_t input;
  };
  SmallVector<Reader, 2> readers;

  // Whether nothing has to run again to have it.
  bool is_kept() const { return defined || offloaded; }
};

struct Op {
  Nanoseconds cost = 0;
  std::uint64_t tag = 0;        // the caller's: what to run
  std::uint32_t remaining = 0;  // outputs that still have this recipe
  std::uint32_t depth = 0;      // the longest chain of recipes that ends here
  struct Input {
    ValueId value;
    std::uint32_t reader;  // position in the value's readers
  };
  SmallVector<Input, 4> inputs;
  SmallVector<ValueId, 2> outputs;  // kNone in place of an output that was dropped
  // In-place ops: takes_over[k] is the input whose bytes output k takes over, or kNone. Empty for pure ops.
  SmallVector<std::uint32_t, 2> takes_over;
};

class Records {
 public:
  StorageId add_storage(Bytes nbytes);
  ValueId add_value(StorageId storage, std::uint64_t tag);

  // An op that reads `inputs`; its outputs are added one by one.
  OpId add_op(Nanoseconds cost, std::uint64_t tag, const std::vector<ValueId>& inputs);
  void add_output(OpId op, ValueId value, std::uint32_t takes_over = kNone);

  // Whether `storage` can never be needed again: no reference, no reader.
  bool dead(StorageId storage) const;

  // Forgets how `value` is made. Inputs that die of it are appended to `orphans`.
  void drop_recipe(ValueId value, std::vector<StorageId>& orphans);

  // Ops that read `from` read `to` from now on: it has the same bytes.
  void read_instead(ValueId from, ValueId to);

  // Forgets `storage`, which is dead, and how its values are made.
  void drop(StorageId storage, std::vector<StorageId>& orphans);

  // Where the ids of dropped storages and the tags of dropped ops are noted, for a caller with tables of its
  // own.
  struct Dropped {
    std::vector<StorageId> storages;
    std::vector<StorageId> cached;  // not dropped: see `cache_constant`
    std::vector<std::uint64_t> ops;
    bool empty() const { return storages.empty() && cached.empty() && ops.empty(); }
    void clear() {
      storages.clear();
      cached.clear();
      ops.clear();
    }
  };
  void note_dropped(Dropped* dropped) { dropped_ = dropped; }
  bool notes_dropped() const { return dropped_ != nullptr; }

  // The record of a dead constant elsewhere stays, for a caller that will use it again: weights are released
  // and come back all the time.
  void cache_constant(StorageId id) {
    storages_[id].become(Residency::kCached);
    ++num_cached_;
    dropped_->cached.push_back(id);
  }
  void reuse_cached(StorageId id) {
    storages_[id].become(Residency::kElsewhere);
    --num_cached_;
  }
  void drop_cached(StorageId id) {
    --num_cached_;
    std::vector<StorageId> orphans;  // none: a constant has no recipe
    drop(id, orphans);
  }

  // Forgets that ops outside `storage` read it.
  void drop_readers(StorageId storage);

  Storage& storage(StorageId id) { return storages_[id]; }
  const Storage& storage(StorageId id) const { return storages_[id]; }
  Value& value(ValueId id) { return values_[id]; }
  const Value& value(ValueId id) const { return values_[id]; }
  Op& op(OpId id) { return ops_[id]; }
  const Op& op(OpId id) const { return ops_[id]; }

  // Calls visit(const Op&) for every op that still makes something.
  template <typename Visit>
  void for_ops(Visit&& visit) const {
    for (OpId id = 0; id < ops_.size(); ++id) {
      if (ops_[id].remaining > 0) visit(ops_[id]);
    }
  }

  // One past the largest storage id in use so far; for tables indexed by storage.
  std::size_t num_storage_slots() const { return storages_.size(); }
  std::size_t num_storages() const { return storages_.size() - free_storages_.size() - num_cached_; }
  std::size_t num_ops() const { return ops_.size() - free_ops_.size(); }

  // Calls visit(StorageId) for the storage of every input (parent) or output (child) of the ops that made
  // (read) values of `id`, duplicates and `id` itself included.
  template <typename Visit>
  void for_parents(StorageId id, Visit&& visit) const {
    for (ValueId v : storages_[id].values) {
      if (values_[v].op == kNone) continue;
      for (const Op::Input& input : ops_[values_[v].op].inputs) visit(values_[input.value].storage);
    }
  }
  template <typename Visit>
  void for_children(StorageId id, Visit&& visit) const {
    for (ValueId v : storages_[id].values) {
      for (const Value::Reader& reader : values_[v].readers) {
        for (ValueId output : ops_[reader.op].outputs) {
          if (output != kNone) visit(values_[output].storage);
        }
      }
    }
  }

 private:
  void drop_output(OpId op, ValueId value, std::vector<StorageId>& orphans);
  void remove_reader(ValueId value, std::uint32_t reader);

  Dropped* dropped_ = nullptr;
  std::size_t num_cached_ = 0;
  Table<Storage> storages_;
  Table<Value> values_;
  Table<Op> ops_;
  std::vector<StorageId> free_storages_;
  std::vector<ValueId> free_values_;
  std::vector<OpId> free_ops_;
};

}  // namespace remint
