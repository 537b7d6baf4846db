// The pool of candidates: resident storages that are neither locked nor pinned.
#pragma once

#include <vector>

#include "engine/records.h"

namespace remint {

class Pool {
 public:
  explicit Pool(Records& records) : records_(records) {}

  void add(StorageId id) {
    Storage& s = records_.storage(id);
    s.order = ++orders_;
    s.pool_index = static_cast<std::uint32_t>(ids_.size());
    ids_.push_back(id);
    nbytes_ += s.nbytes;
  }

  void remove(StorageId id) {
    Storage& s = records_.storage(id);
    ids_[s.pool_index] = ids_.back();
    records_.storage(ids_.back()).pool_index = s.pool_index;
    ids_.pop_back();
    s.pool_index = kNone;
    nbytes_ -= s.nbytes;
  }

  bool contains(StorageId id) const { return records_.storage(id).pool_index != kNone; }
  const std::vector<StorageId>& ids() const { return ids_; }
  bool empty() const { return ids_.empty(); }
  double mean_bytes() const {
    return ids_.empty() ? 0.0 : static_cast<double>(nbytes_) / static_cast<double>(ids_.size());
  }

 private:
  Records& records_;
  std::vector<StorageId> ids_;
  std::uint64_t orders_ = 0;
  Bytes nbytes_ = 0;
};

}  // namespace remint
