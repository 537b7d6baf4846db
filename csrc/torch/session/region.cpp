#include "torch/session/region.h"

#include <mutex>
#include <utility>

#include "torch/session/session.h"

namespace remint {
namespace {

struct Entry {
  std::shared_ptr<Region> region;
  std::shared_ptr<Session> session;  // null once the budget ended
  std::unordered_map<Bytes, Bytes> survivors;
};

// Never destroyed: tensors can die after all static objects.
std::vector<Entry>& entries() {
  static auto* all = new std::vector<Entry>();
  return *all;
}

std::mutex& entries_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

// So that ordinary memory and single budgets cost no lock.
std::atomic<std::size_t> num_entries{0};
std::atomic<std::size_t> num_open{0};

Entry* find(const void* address) {
  for (Entry& entry : entries()) {
    if (entry.region->contains(address)) return &entry;
  }
  return nullptr;
}

void erase(Entry* entry) {
  entry->region->release();
  *entry = std::move(entries().back());
  entries().pop_back();
  num_entries = entries().size();
}

}  // namespace

void Regions::add(std::shared_ptr<Region> region, std::shared_ptr<Session> session) {
  std::lock_guard<std::mutex> lock(entries_mutex());
  entries().push_back({std::move(region), std::move(session), {}});
  num_entries = entries().size();
  ++num_open;
}

void Regions::close(const std::shared_ptr<Region>& region, std::unordered_map<Bytes, Bytes> survivors) {
  std::shared_ptr<Session> session;  // dropped after the lock
  std::lock_guard<std::mutex> lock(entries_mutex());
  for (Entry& entry : entries()) {
    if (entry.region != region) continue;
    session = std::move(entry.session);
    --num_open;
    entry.survivors = std::move(survivors);
    if (entry.survivors.empty()) erase(&entry);
    return;
  }
}

std::shared_ptr<Session> Regions::session_of(const void* address) {
  if (num_entries == 0) return nullptr;
  std::lock_guard<std::mutex> lock(entries_mutex());
  Entry* entry = find(address);
  return entry == nullptr ? nullptr : entry->session;
}

bool Regions::contains(const void* address) {
  if (num_entries == 0) return false;
  std::lock_guard<std::mutex> lock(entries_mutex());
  return find(address) != nullptr;
}

std::vector<std::shared_ptr<Session>> Regions::open_sessions() {
  std::vector<std::shared_ptr<Session>> sessions;
  if (num_open == 0) return sessions;
  std::lock_guard<std::mutex> lock(entries_mutex());
  for (const Entry& entry : entries()) {
    if (entry.session != nullptr) sessions.push_back(entry.session);
  }
  return sessions;
}

std::atomic<std::size_t>& Regions::num_shared_reads() {
  static std::atomic<std::size_t> number{0};
  return number;
}

void Regions::before_fork() {
  entries_mutex().lock();
  for (const Entry& entry : entries()) {
    if (entry.session != nullptr) entry.session->before_fork();
  }
}

bool Regions::after_fork(bool in_child) {
  bool abandoned = false;
  for (const Entry& entry : entries()) {
    if (entry.session != nullptr) abandoned = entry.session->after_fork(in_child) || abandoned;
  }
  entries_mutex().unlock();
  return abandoned;
}

std::size_t Regions::num_open_sessions() {
  return num_open;
}

bool Regions::record_stream(void* address, const c10::Stream& stream) {
  if (num_entries == 0) return false;
  std::lock_guard<std::mutex> lock(entries_mutex());
  Entry* entry = find(address);
  if (entry != nullptr) entry->region->used_by(stream);
  return entry != nullptr;
}

bool Regions::free_survivor(void* address) {
  if (num_entries == 0) return false;
  std::lock_guard<std::mutex> lock(entries_mutex());
  Entry* entry = find(address);
  if (entry == nullptr) return false;
  const Bytes offset = entry->region->offset(address);
  auto survivor = entry->survivors.find(offset);
  if (survivor != entry->survivors.end()) {
    entry->region->discard(offset, survivor->second);
    entry->survivors.erase(survivor);
  }
  if (entry->survivors.empty() && entry->session == nullptr) erase(entry);
  return true;
}

}  // namespace remint
