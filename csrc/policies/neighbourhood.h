// What a storage would cost to make again: its own ops, and those of what is evicted around it.
//
// DTR (2021) defines the evicted neighbourhood by closures: the ancestors and descendants of a storage that
// are reached through non-resident storages only. Its cheaper approximation keeps equivalence classes of
// neighbouring evicted storages and adds up the sums of the adjacent classes. Each kind keeps a cache per
// storage and is told what changes, so that asking for the cost of every candidate touches little more than
// the candidate.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/records.h"
#include "engine/tier.h"

namespace remint {

// Storages that changed, each once.
class ChangeList {
 public:
  void add(StorageId id) {
    if (id >= listed_.size()) listed_.resize(std::max<std::size_t>(id + 1, 2 * listed_.size()));
    if (listed_[id]) return;
    listed_[id] = true;
    ids_.push_back(id);
  }
  const std::vector<StorageId>& ids() const { return ids_; }
  void clear() {
    for (StorageId id : ids_) listed_[id] = false;
    ids_.clear();
  }

 private:
  std::vector<StorageId> ids_;
  std::vector<bool> listed_;
};

enum class NeighbourhoodKind : std::uint8_t {
  kLocal,      // nothing but the storage itself
  kAncestors,  // and its evicted ancestors
  kNear,       // and those of its evicted ancestors that are near: constant time, however long a program is
  kClosures,   // and its evicted descendants
  kClasses,    // equivalence classes in place of closures
};

class Neighbourhood {
 public:
  Neighbourhood(const Records& records, const Tier* tier) : records_(records), tier_(tier) {}
  virtual ~Neighbourhood() = default;
  Neighbourhood(const Neighbourhood&) = delete;
  Neighbourhood& operator=(const Neighbourhood&) = delete;

  // The storage was just added and has no bytes yet; its op is recorded.
  virtual void added(StorageId) {}
  // A view of the storage, which is evicted, was recorded: it costs that much more.
  virtual void costs_more(StorageId, Nanoseconds) {}
  virtual void evicted(StorageId) {}
  virtual void materialized(StorageId) {}
  // The bytes left for the tier, and came back: what is above them is not needed to have them again.
  virtual void offloaded(StorageId) {}
  virtual void fetched(StorageId) {}
  // The record of an evicted, offloaded or resident storage, still complete, is about to be dropped, or to
  // lose its recipe.
  virtual void dropping(StorageId) {}

  // Nobody will ask for costs for a while: what changes is not followed. Whoever asks again ends that, and
  // then everything is looked at anew.
  virtual void pause() {}

  virtual Nanoseconds cost(StorageId id) { return records_.storage(id).cost; }

  // Where storages whose cost may have changed are noted, for policies that keep an index.
  void note_changes_in(ChangeList* changes) { changes_ = changes; }

 protected:
  bool notes_changes() const { return changes_ != nullptr; }
  void changed(StorageId id) {
    if (changes_ != nullptr) changes_->add(id);
  }
  const Records& records_;
  const Tier* tier_;  // null: there is none

 private:
  ChangeList* changes_ = nullptr;
};

std::unique_ptr<Neighbourhood> make_neighbourhood(NeighbourhoodKind kind, const Records& records,
                                                  const Tier* tier);

}  // namespace remint
