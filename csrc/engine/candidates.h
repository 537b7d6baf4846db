// Candidates for eviction: resident storages that are neither locked nor pinned.
#pragma once

#include <vector>

#include "engine/records.h"
#include "memory/memory.h"

namespace remint {

class Candidates {
 public:
  Candidates(Records& records, const Memory& memory) : records_(records), memory_(memory) {}

  void add(StorageId id) {
    records_.storage(id).order = ++orders_;
    put_back(id);
  }

  // Like `add`, at the place in the order that it had before.
  void put_back(StorageId id) {
    Storage& s = records_.storage(id);
    s.candidate_index = static_cast<std::uint32_t>(ids_.size());
    ids_.push_back(id);
    nbytes_ += s.nbytes;
    footprint_ += memory_.footprint(s.nbytes);
  }

  void remove(StorageId id) {
    Storage& s = records_.storage(id);
    ids_[s.candidate_index] = ids_.back();
    records_.storage(ids_.back()).candidate_index = s.candidate_index;
    ids_.pop_back();
    s.candidate_index = kNone;
    nbytes_ -= s.nbytes;
    footprint_ -= memory_.footprint(s.nbytes);
  }

  bool contains(StorageId id) const { return records_.storage(id).candidate_index != kNone; }
  const std::vector<StorageId>& ids() const { return ids_; }
  bool empty() const { return ids_.empty(); }
  double mean_bytes() const {
    return ids_.empty() ? 0.0 : static_cast<double>(nbytes_) / static_cast<double>(ids_.size());
  }
  // What their blocks take.
  Bytes footprint() const { return footprint_; }

 private:
  Records& records_;
  const Memory& memory_;
  std::vector<StorageId> ids_;
  std::uint64_t orders_ = 0;
  Bytes nbytes_ = 0;
  Bytes footprint_ = 0;
};

}  // namespace remint
