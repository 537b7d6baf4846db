// A guide through a step that was seen before: for each request for memory, in order, what is evicted for it
// and where it is placed; for each op, what is made resident ahead of it.
//
// A guide decides nothing that could be wrong: any candidate may be evicted, and any free bytes may be given
// out. If the program departs from the step, the guide ends, and the policy goes on from what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace remint {

struct GuidedRequest {
  Bytes nbytes;
  Bytes address;               // kNoAddress: it is refused, as it was in the simulation
  std::uint32_t first_victim;  // those up to the first one of the next request
};

struct GuidedStep {
  std::vector<GuidedRequest> requests;
  std::vector<std::uint32_t> victims;  // the number of a value among those that the step makes
  // Of a planned step: what is made resident before each op, in this order, by running ops again. Each op
  // has those up to the first one of the next; no entries: nothing is made ahead.
  std::vector<std::uint32_t> makes;
  std::vector<std::uint32_t> first_makes;
};

// Why a guide ended before its step.
enum class Departure : std::uint8_t {
  kNot,
  kSize,     // a request of another size, or one more
  kVictim,   // what was to be evicted is not there
  kAddress,  // where it was to be placed is something else
  kCaller,   // the caller saw another op
};

class Guide {
 public:
  bool active() const { return step_ != nullptr; }
  Departure departure() const { return departure_; }
  // Requests that were served.
  std::size_t num_served() const { return next_; }

  void begin(const GuidedStep& step, std::uint64_t first_tag) {
    step_ = &step;
    first_tag_ = first_tag;
    next_ = 0;
    departure_ = Departure::kNot;
    storages_.clear();
  }
  void end() { step_ = nullptr; }
  void departs(Departure why) {
    departure_ = why;
    step_ = nullptr;
  }

  // Goes on to the next request; false, and the guide has ended, if it is of another size.
  bool next(Bytes nbytes) {
    if (next_ >= step_->requests.size() || step_->requests[next_].nbytes != nbytes) {
      departs(Departure::kSize);
      return false;
    }
    const GuidedRequest& request = step_->requests[next_++];
    const std::size_t end =
        next_ < step_->requests.size() ? step_->requests[next_].first_victim : step_->victims.size();
    address_ = request.address;
    victims_.clear();
    for (std::size_t i = request.first_victim; i < end; ++i)
      victims_.push_back(first_tag_ + step_->victims[i]);
    return true;
  }
  // Of the request at hand: the tags of the values to evict, and where it is placed.
  const std::vector<std::uint64_t>& victims() const { return victims_; }
  Bytes address() const { return address_; }
  bool refuses() const { return address_ == kNoAddress; }

  // The tags of the values to make resident before the op of that number. The next call overwrites it.
  const std::vector<std::uint64_t>& makes(std::size_t op) {
    makes_.clear();
    if (op + 1 < step_->first_makes.size()) {
      for (std::size_t i = step_->first_makes[op]; i < step_->first_makes[op + 1]; ++i)
        makes_.push_back(first_tag_ + step_->makes[i]);
    }
    return makes_;
  }

  // A value was made.
  void note_made(std::uint64_t tag, StorageId storage) {
    if (step_ == nullptr || tag < first_tag_) return;
    const std::size_t number = tag - first_tag_;
    if (number >= storages_.size()) storages_.resize(number + 1, kNone);
    storages_[number] = storage;
  }
  // Where a value was when it was made. Its record may be gone, and another one in its place.
  StorageId storage_of(std::uint64_t tag) const {
    const std::size_t number = tag - first_tag_;
    return number < storages_.size() ? storages_[number] : kNone;
  }

 private:
  const GuidedStep* step_ = nullptr;
  std::uint64_t first_tag_ = 0;
  std::size_t next_ = 0;
  Departure departure_ = Departure::kNot;
  Bytes address_ = 0;
  std::vector<std::uint64_t> victims_;
  std::vector<std::uint64_t> makes_;
  std::vector<StorageId> storages_;
};

}  // namespace remint
