// The tier: memory below the budget's own, for bytes that are slower to have back than to keep, and often
// quicker than to recompute. Host memory for an accelerator, a file for the CPU. Here it is counted; the
// Device moves the bytes.
//
//   resident ──offloaded──▶ offloaded ──fetched──▶ resident with a copy ──offloaded: free──▶ offloaded
//
// A copy stays after its bytes were fetched, until they are written, so that they can leave again without
// another transfer. Copies of resident bytes give way when the tier is full.
#pragma once

#include <cassert>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/options.h"
#include "engine/records.h"

namespace remint {

class Tier {
 public:
  Tier(const TierOptions& options, const Records& records)
      : options_(options), records_(records), capacity_(options.bytes) {
    set_use(options.use);
  }

  // What `nbytes` take there.
  Bytes footprint(Bytes nbytes) const {
    return (nbytes + options_.alignment - 1) / options_.alignment * options_.alignment;
  }
  // How long it takes to copy so many bytes there, or back.
  Nanoseconds transfer_time(Bytes nbytes) const {
    const double seconds = static_cast<double>(nbytes) / bandwidth();
    return options_.latency + static_cast<Nanoseconds>(std::ceil(seconds * 1e9));
  }
  // How long it takes until bytes that leave now are back.
  Nanoseconds cost(const Storage& s) const {
    const Nanoseconds once = transfer_time(s.nbytes);
    return s.residency == Residency::kResidentWithCopy ? once : 2 * once;
  }

  // Whether the bytes of a resident storage can leave: a copy is there, or there is room for one.
  bool takes(const Storage& s) const {
    return s.residency == Residency::kResidentWithCopy ||
           used_ - clean_bytes_ + footprint(s.nbytes) <= capacity_;
  }
  // A copy of a resident storage that has to go before one of `nbytes` fits; kNone: it fits.
  StorageId in_the_way_of(Bytes nbytes) const {
    return used_ + footprint(nbytes) <= capacity_ || clean_.empty() ? kNone : clean_.front();
  }

  // A copy of a resident storage was made, or became its only one, or is that of a resident one again.
  void copied(StorageId id) {
    used_ += footprint(records_.storage(id).nbytes);
    peak_ = std::max(peak_, used_);
    list(id);
  }
  void left(StorageId id) { unlist(id); }
  void came_back(StorageId id) { list(id); }
  // The copy is given up.
  void drop(StorageId id) {
    if (is_clean(id)) unlist(id);
    used_ -= footprint(records_.storage(id).nbytes);
  }

  // It takes no more than it has now: nothing can be written any more, or nothing should be.
  void stop_growing() { capacity_ = used_; }
  // What transfers were found to take.
  void set_bandwidth(double bytes_per_second) { bandwidth_ = bytes_per_second; }

  void set_use(TierUse use) {
    use_ = use;
    pinned_leave_ = use != TierUse::kRecompute;
  }
  // Whether pinned bytes leave to make room. Where the rest is recomputed they do only when nothing else is
  // left, so that until then all is as without a tier.
  bool pinned_leave() const { return pinned_leave_; }
  // Nothing else is left. False: that changes nothing.
  bool let_pinned_leave() { return !std::exchange(pinned_leave_, true); }
  TierUse use() const { return use_; }

  // Whether it is counted as a resident storage with a copy.
  bool is_clean(StorageId id) const { return id < places_.size() && places_[id] != kNone; }
  // A resident storage with a copy; kNone: there is none.
  StorageId any_clean() const { return clean_.empty() ? kNone : clean_.front(); }

  double bandwidth() const { return bandwidth_ > 0 ? bandwidth_ : options_.bandwidth; }
  Bytes used() const { return used_; }
  Bytes peak() const { return peak_; }
  Bytes clean_bytes() const { return clean_bytes_; }
  Bytes capacity() const { return capacity_; }

 private:
  void list(StorageId id) {
    if (id >= places_.size()) places_.resize(records_.num_storage_slots(), kNone);
    places_[id] = static_cast<std::uint32_t>(clean_.size());
    clean_.push_back(id);
    clean_bytes_ += footprint(records_.storage(id).nbytes);
  }
  void unlist(StorageId id) {
    assert(is_clean(id));
    const std::uint32_t place = places_[id];
    clean_[place] = clean_.back();
    places_[clean_.back()] = place;
    clean_.pop_back();
    places_[id] = kNone;
    clean_bytes_ -= footprint(records_.storage(id).nbytes);
  }

  const TierOptions options_;
  const Records& records_;
  double bandwidth_ = 0.0;  // measured; 0: as given
  Bytes capacity_;
  TierUse use_ = TierUse::kEither;
  bool pinned_leave_ = true;
  Bytes used_ = 0;  // by copies
  Bytes peak_ = 0;
  Bytes clean_bytes_ = 0;         // of them, by copies of resident bytes
  std::vector<StorageId> clean_;  // resident storages with a copy
  // By storage: where it is in `clean_`, or kNone. Not in the storage itself, of which there are many without
  // a tier.
  std::vector<std::uint32_t> places_;
};

}  // namespace remint
